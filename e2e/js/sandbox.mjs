// Sandboxes for the tests, and the ways to reach them that are not the SDK's own.
import { randomUUID } from 'node:crypto'
import http from 'node:http'
import { after } from 'node:test'
import { Sandbox } from 'e2b'

if (!process.env.E2B_API_URL) throw new Error('these tests drive a running server: start them with e2e/run')

const LIFE_MS = 600_000

/** A sandbox for one test; it ends with the test. */
export async function make(t, options = {}) {
  const sandbox = await Sandbox.create({ timeoutMs: LIFE_MS, ...options })
  t.after(() => sandbox.kill())
  return sandbox
}

/** One sandbox for all tests of a file. */
export function shared() {
  let made
  after(async () => (await made)?.kill())
  return () => (made ??= Sandbox.create({ timeoutMs: 3 * LIFE_MS }))
}

export const tag = () => ({ test: randomUUID() })
export const here = async (box) => {
  const path = `/home/user/${randomUUID().slice(0, 12)}`
  await box.files.makeDir(path)
  return path
}

export async function eventually(condition, withinMs = 90_000) {
  const deadline = Date.now() + withinMs
  for (;;) {
    const found = await condition()
    if (found) return found
    if (Date.now() > deadline) throw new Error(`did not happen within ${withinMs} ms: ${condition}`)
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}

/** A request to a port of a sandbox, named by header or by Host. */
export function visit(sandbox, port, { path = '/', by = 'header', method = 'GET', headers = {}, body } = {}) {
  const names =
    by === 'header'
      ? { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) }
      : { Host: sandbox.getHost(port) }
  return new Promise((resolve, reject) => {
    const request = http.request(
      process.env.E2B_SANDBOX_URL + path,
      { method, headers: { ...headers, ...names } },
      (answer) => {
        const parts = []
        answer.on('data', (part) => parts.push(part))
        answer.on('end', () => resolve({ status: answer.statusCode, text: Buffer.concat(parts).toString() }))
        answer.on('error', reject)
      },
    )
    request.on('error', reject)
    request.end(body)
  })
}

export const bootId = async (sandbox) =>
  (await sandbox.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout.trim()
