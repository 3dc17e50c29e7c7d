// One ramp for every map and every shaded number: lightness runs one way from end to end, so that the order of values
// survives any colour blindness and a grey printer; hue only drifts a little around blue. Each stop is OKLCH.
const RAMP_STOPS = {
  light: [[0.985, 0.005, 265], [0.62, 0.15, 268], [0.25, 0.1, 276]],
  dark: [[0.225, 0.012, 276], [0.63, 0.15, 268], [0.955, 0.045, 240]],
};

// OKLCH to 8-bit sRGB. Source: Ottosson 2020, "A perceptual color space for image processing".
const toRgb = (lightness, chroma, hue) => {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((linear) => {
    const clipped = Math.min(1, Math.max(0, linear));
    return Math.round(255 * (clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055));
  });
};

const makeRamp = (stops) =>
  Array.from({ length: 256 }, (_, byte) => {
    const place = (byte / 255) * (stops.length - 1);
    const first = Math.min(stops.length - 2, Math.floor(place));
    return toRgb(...stops[first].map((from, axis) => from + (stops[first + 1][axis] - from) * (place - first)));
  });

const RAMPS = { light: makeRamp(RAMP_STOPS.light), dark: makeRamp(RAMP_STOPS.dark) };
const ramp = () => RAMPS[currentTheme()];

const shadeOf = (fraction) => `rgb(${ramp()[Math.round(255 * fraction)].join(" ")})`;

// Ink that can be read on a shade: black and white stand out alike (4.6 to 1) on a luminance of 0.179.
// Source: WCAG 2.2, relative luminance and contrast ratio.
const inkOver = (colour) => {
  const [red, green, blue] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
};
const inkOn = (fraction) => inkOver(ramp()[Math.round(255 * fraction)]);

const paintShade = (element, fraction) => {
  element.style.backgroundColor = fraction === null ? "" : shadeOf(fraction);
  element.style.color = fraction === null ? "" : inkOn(fraction);
};

// The colours of a ramp as pixels of 4 bytes: a map is painted a pixel at a time.
const pixelsOf = (colours) => new Uint32Array(Uint8Array.from(colours.flatMap((colour) => [...colour, 255])).buffer);
const RAMP_PIXELS = { light: pixelsOf(RAMPS.light), dark: pixelsOf(RAMPS.dark) };

const paintMap = (canvas, map) => {
  canvas.width = map.numKeys;
  canvas.height = map.numQueries;
  const image = new ImageData(map.numKeys, map.numQueries);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = RAMP_PIXELS[currentTheme()];
  for (let at = 0; at < pixels.length; at += 1) pixels[at] = colours[map.bytes[at]];
  canvas.getContext("2d").putImageData(image, 0, 0);
};

const paintRamp = (canvas) => {
  const bytes = Uint8Array.from({ length: canvas.width }, (_, index) => Math.round((255 * index) / (canvas.width - 1)));
  paintMap(canvas, { numQueries: 1, numKeys: bytes.length, bytes });
};
