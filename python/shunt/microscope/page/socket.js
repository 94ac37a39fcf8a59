// The socket of the page, in a thread of its own: tiles are decoded here, and what came when does not depend on how long the page takes to draw.

const RETRY = 1000; // ms
let socket = null;

function connect(url) {
  socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => postMessage({ open: true });
  socket.onclose = () => {
    postMessage({ open: false });
    setTimeout(connect, RETRY, url);
  };
  socket.onmessage = ({ data }) => (typeof data === "string" ? postMessage({ told: JSON.parse(data) }) : tile(data));
}

async function tile(data) {
  const [update, level, x, y] = new Uint32Array(data, 0, 4);
  const picture = new Blob([new Uint8Array(data, 16)], { type: "image/jpeg" });
  try {
    const bitmap = await createImageBitmap(picture);
    postMessage({ tile: { update, level, x, y, picture, bitmap, at: performance.timeOrigin + performance.now() } }, [bitmap]);
  } catch (error) {
    postMessage({ told: { end: update, state: "failed", why: `a tile is no picture: ${error}` } });
  }
}

onmessage = ({ data }) => {
  if (data.connect) connect(data.connect);
  else if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(data));
};
