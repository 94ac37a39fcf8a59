// A Node server and client: `node echo.js server PORT` serves HTTP on PORT and echoes raw TCP on PORT + 1;
// `node echo.js client PORT` drives both and prints what it got.
const http = require('http'), net = require('net'), crypto = require('crypto');
const [, , role, portText] = process.argv;
const port = Number(portText);
const sha = (data) => crypto.createHash('sha1').update(data).digest('hex');

if (role === 'server') {
  net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(port + 1, '127.0.0.1', () => {
    http.createServer((request, response) => {
      const parts = [];
      request.on('data', (part) => parts.push(part));
      request.on('end', () => response.end(JSON.stringify({ url: request.url, length: Buffer.concat(parts).length, sha: sha(Buffer.concat(parts)) })));
    }).listen(port, '127.0.0.1');
  });
} else {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
  const ask = (path, body) => new Promise((resolve, reject) => {
    const request = http.request({ port, host: '127.0.0.1', path, method: body ? 'POST' : 'GET', agent }, (response) => {
      let text = '';
      response.on('data', (part) => { text += part; });
      response.on('end', () => resolve(text));
    });
    request.on('error', reject);
    request.end(body);
  });
  const raw = (size) => new Promise((resolve, reject) => {
    const data = Buffer.alloc(size, (i) => i), got = [];
    for (let i = 0; i < size; i++) data[i] = (i * 7919) >> 3;
    const socket = net.connect({ port: port + 1, host: '127.0.0.1', allowHalfOpen: true });
    socket.on('data', (part) => got.push(part));
    socket.on('end', () => resolve(Buffer.concat(got).equals(data) ? `raw ${size} same` : `raw ${size} DIFFERENT`));
    socket.on('error', reject);
    socket.end(data);
  });
  // Many small messages one after the other.
  const chat = (rounds) => new Promise((resolve, reject) => {
    const socket = net.connect({ port: port + 1, host: '127.0.0.1', noDelay: true });
    let i = 0;
    socket.on('connect', () => socket.write('message 0 '));
    socket.on('data', (part) => { if (++i === rounds) { socket.end(); resolve(`chat ${i} ${part}`); } else socket.write(`message ${i} `); });
    socket.on('error', reject);
  });
  (async () => {
    const lines = [];
    for (let i = 0; i < 300; i++) lines.push(await ask(`/get/${i}`));
    lines.push(...await Promise.all(Array.from({ length: 40 }, (_, i) => ask(`/many/${i}`, Buffer.alloc(1 + i * 5000, i)))));
    lines.push(await ask('/big', Buffer.alloc(8 << 20, 'big')));
    lines.push(...await Promise.all([1, 1000, 70000, 5 << 20].map(raw)));
    lines.push(await chat(2000));
    console.log(lines.join('\n'));
    agent.destroy();
  })().catch((error) => { console.error(error); process.exit(1); });
}
