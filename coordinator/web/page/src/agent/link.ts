// A connection to the broker over a WebSocket. The only file that uses the MQTT library.
import mqtt, { type MqttClient } from "mqtt";

const FIRST_PAUSE = 1500; // milliseconds until the first new connection; then twice as long each time
const LONGEST_PAUSE = 10_000;
const KEEPALIVE = 60; // seconds
const FAREWELL = 5000; // milliseconds for what waits to be sent

/** Where and as whom to connect. url: ws:// or wss://; will: topic and payload, retained. */
export interface Door {
  url: string;
  name: string;
  password?: string;
  will?: { topic: string; payload: Uint8Array };
}

/** What a link reports. down: with the reason, perhaps empty; refused: true if the broker does not
    accept the password. */
export interface LinkEvents {
  up(): void;
  down(reason: string, refused: boolean): void;
  message(topic: string, payload: Uint8Array, retained: boolean): void;
}

/** retain, qos: as in MQTT. done: called once the broker has the message, or the connection is lost. */
export interface Publishing {
  retain?: boolean;
  qos?: 0 | 1;
  done?(passed: boolean): void;
}

/** While the connection is down, nothing is sent, neither then nor later: `up` tells when to repeat it. */
export interface Link {
  subscribe(topic: string): void;
  unsubscribe(topic: string): void;
  publish(topic: string, payload: Uint8Array, options?: Publishing): void;
  /** End the connection once everything is sent, or after some seconds. */
  close(): Promise<void>;
}

/** Connect, and connect again whenever the connection is lost, until `close` or a refusal. Nothing
    survives a connection: its client would send again what was not acknowledged, before it reports
    the new one, even a message for which the broker closed the last one. */
export function openLink(door: Door, events: LinkEvents): Link {
  let client: MqttClient;
  let pause = FIRST_PAUSE;
  let next: ReturnType<typeof setTimeout> | undefined;
  let over = false;

  const open = () => {
    const opened = connect(door);
    let reason = "";
    let refused = false;
    client = opened;
    opened.on("connect", () => {
      pause = FIRST_PAUSE;
      events.up();
    });
    opened.on("message", (topic, payload, packet) => events.message(topic, payload, packet.retain));
    opened.on("error", (error) => {
      reason = error.message;
      refused = "code" in error && (error.code === 4 || error.code === 5);
    });
    opened.on("close", () => {
      opened.end(true); // calls what waits for an acknowledgement
      over ||= refused;
      if (!over) next = setTimeout(open, pause);
      pause = Math.min(LONGEST_PAUSE, 2 * pause);
      events.down(reason, refused);
    });
  };
  open();
  return {
    subscribe: (topic) => void (client.connected && client.subscribe(topic, { qos: 1 })),
    unsubscribe: (topic) => void (client.connected && client.unsubscribe(topic)),
    publish: (topic, payload, { retain = false, qos = 1, done } = {}) => {
      if (!client.connected) return done?.(false);
      client.publish(topic, payload as Buffer, { qos, retain }, (error) => done?.(!error));
    },
    close: () => {
      over = true;
      clearTimeout(next);
      // without a connection, what waits to be sent would wait for ever
      return Promise.race([
        client.endAsync(!client.connected),
        new Promise<void>((resolve) => setTimeout(resolve, FAREWELL)),
      ]);
    },
  };
}

/** Connect once. */
function connect({ url, name, password, will }: Door): MqttClient {
  return mqtt.connect(url, {
    protocolVersion: 4,
    clientId: name,
    username: name,
    password,
    clean: true,
    keepalive: KEEPALIVE,
    reconnectPeriod: 0, // the library gives up for good when the server cannot reach the broker
    connectTimeout: 20_000,
    resubscribe: false,
    timerVariant: "native", // others start a worker from a blob, which the page's policy forbids
    will: will && { topic: will.topic, payload: will.payload as never, qos: 1, retain: true },
  });
}
