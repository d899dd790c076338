// Turn pictures into examples of the run's shape. They stay in the browser.
import type { Card } from "../../agent/messages";

type Network = NonNullable<Card["network"]>;

/** How pictures are read. inverted: dark on light, where the run learns light on dark;
    white: the value of a white point. */
export interface Reading {
  inverted: boolean;
  white: number;
}

/** Return whether pictures can be examples of a network. */
export function takesPictures(network: Network): boolean {
  return network.objective === "class" && network.inputs.length === 3 && [1, 3].includes(network.inputs[0] ?? 0);
}

/** Guess the value of a white point from the moments of the run's examples. */
export function guessWhite({ mean, std }: Network): number {
  const high = Math.max(...mean.map((one, channel) => one + 2 * (std[channel] ?? 1)));
  return high < 32 ? 16 : 255;
}

/** Return pixels as [channels, height, width]. source: a file, or a playing video. Throws an Error that
    names an unreadable one. */
export async function readPicture(source: ImageBitmapSource, name: string, inputs: number[], reading: Reading): Promise<Uint8Array> {
  const [channels = 1, height = 1, width = 1] = inputs;
  let picture: ImageBitmap;
  try {
    picture = await createImageBitmap(source);
  } catch {
    throw new Error(`${name} is not a picture that this browser can read. Choose a JPEG or PNG file.`);
  }
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error("This browser cannot read pictures.");
  // the largest square, or rectangle of the run's shape, in the middle
  const scale = Math.min(picture.width / width, picture.height / height);
  const [wide, high] = [width * scale, height * scale];
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, (picture.width - wide) / 2, (picture.height - high) / 2, wide, high, 0, 0, width, height);
  picture.close();
  const { data } = context.getImageData(0, 0, width, height);
  return convert(data, channels, reading);
}

function convert(data: Uint8ClampedArray, channels: number, { inverted, white }: Reading): Uint8Array {
  const area = data.length / 4;
  const out = new Uint8Array(channels * area);
  for (let at = 0; at < area; at++) {
    const [red = 0, green = 0, blue = 0] = data.subarray(4 * at, 4 * at + 3);
    const values = channels === 1 ? [0.299 * red + 0.587 * green + 0.114 * blue] : [red, green, blue];
    values.forEach((value, channel) => {
      out[channel * area + at] = Math.round(((inverted ? 255 - value : value) * white) / 255);
    });
  }
  return out;
}
