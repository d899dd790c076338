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

export interface Link {
  subscribe(topic: string): void;
  unsubscribe(topic: string): void;
  /** Publish, and call `sent` once the broker has it. */
  publish(topic: string, payload: Uint8Array, options?: { retain?: boolean; qos?: 0 | 1; sent?: () => void }): void;
  /** End the connection once everything is sent, or after some seconds. */
  close(): Promise<void>;
}

/** Connect, and connect again whenever the connection is lost. Subscriptions do not survive that. */
export function openLink(door: Door, events: LinkEvents): Link {
  const client: MqttClient = mqtt.connect(door.url, {
    protocolVersion: 4,
    clientId: door.name,
    username: door.name,
    password: door.password,
    clean: true,
    keepalive: KEEPALIVE,
    reconnectPeriod: FIRST_PAUSE,
    connectTimeout: 20_000,
    resubscribe: false,
    timerVariant: "native", // others start a worker from a blob, which the page's policy forbids
    queueQoSZero: false,
    will: door.will && { topic: door.will.topic, payload: door.will.payload as never, qos: 1, retain: true },
  });
  let reason = "";
  let refused = false;
  client.on("connect", () => {
    client.options.reconnectPeriod = FIRST_PAUSE;
    reason = "";
    events.up();
  });
  client.on("message", (topic, payload, packet) => events.message(topic, payload, packet.retain));
  client.on("error", (error) => {
    reason = error.message;
    refused = "code" in error && (error.code === 4 || error.code === 5);
    if (refused) client.end(true);
  });
  client.on("close", () => {
    events.down(reason, refused);
    client.options.reconnectPeriod = Math.min(LONGEST_PAUSE, 2 * (client.options.reconnectPeriod ?? FIRST_PAUSE));
  });
  return {
    subscribe: (topic) => void client.subscribe(topic, { qos: 1 }),
    unsubscribe: (topic) => void client.unsubscribe(topic),
    publish: (topic, payload, { retain = false, qos = 1, sent } = {}) => {
      client.publish(topic, payload as Buffer, { qos, retain }, (error) => error || sent?.());
    },
    // without a connection, what waits to be sent would wait for ever
    close: () => Promise.race([
      client.endAsync(!client.connected),
      new Promise<void>((resolve) => setTimeout(resolve, FAREWELL)),
    ]),
  };
}
