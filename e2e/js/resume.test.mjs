// Commands and terminals that run while a part of the server dies.
//
// The SDK does not go on with a broken stream by itself: it says that the connection broke, and `connect` to the pid
// gives everything from the start, once.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'
import { CommandExitError, Sandbox } from 'e2b'
import { eventually } from './sandbox.mjs'

// A server of these tests' own, since they kill its parts: it lives as long as the helper's input is open, and the
// helper tells the process of each part that it is asked for.
const HELPER = `
import json, sys, tempfile
from coffer_up import CofferUp
with tempfile.TemporaryDirectory(prefix="coffer-js-") as scratch:
    with CofferUp(f"{scratch}/data", "--ephemeral", "--warm-slots", "0") as up:
        print(json.dumps(up.sdk()), flush=True)
        for role in sys.stdin:
            print(json.dumps(up.part(role.strip())), flush=True)
`
let helper, answers, options
const answer = async () => JSON.parse((await answers.next()).value)

before(async () => {
  helper = spawn('python3', ['-c', HELPER], { stdio: ['pipe', 'pipe', 'inherit'] })
  answers = createInterface(helper.stdout)[Symbol.asyncIterator]()
  const { api_url: apiUrl, sandbox_url: sandboxUrl, api_key: apiKey } = await answer()
  options = { apiUrl, sandboxUrl, apiKey, timeoutMs: 600_000 }
})

after(async () => {
  const ended = new Promise((resolve) => helper.on('close', resolve))
  helper.stdin.end()
  await ended
})

async function part(role) {
  helper.stdin.write(`${role}\n`)
  return answer()
}

/** Kills a part and gives the condition that another runs. */
async function kill(role) {
  const old = await part(role)
  process.kill(old, 'SIGKILL')
  return async () => ![null, old].includes(await part(role))
}

/** What a call gives once the server is back. */
const answered = (call) => eventually(() => call().catch(() => undefined))

const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index)
const HALF = 20
const ALL = 40
const STDOUT = numbers(1, ALL)
  .map((number) => `line ${number}\n`)
  .join('')
const STDERR = numbers(1, ALL)
  .map((number) => `-${number}\n`)
  .join('')
const script = (gate) =>
  `for i in $(seq ${HALF}); do echo line $i; echo -$i >&2; done; until [ -e ${gate} ]; do sleep 0.05; done; ` +
  `for i in $(seq ${HALF + 1} ${ALL}); do echo line $i; echo -$i >&2; done; exit 7`

/** Starts a command and waits for the first half of its output. */
async function atHalf(sandbox, gate) {
  let seen = ''
  const command = await sandbox.commands.run(script(gate), {
    background: true,
    timeoutMs: 300_000,
    onStdout: (text) => void (seen += text),
  })
  await eventually(() => seen.endsWith(`line ${HALF}\n`))
  return command
}

/** How a command ended, with all that it printed. */
const ended = (command) =>
  command.wait().then(
    () => assert.fail('it ends with 7'),
    (error) => {
      assert.ok(error instanceof CommandExitError, error)
      return [error.stdout, error.stderr, error.exitCode]
    },
  )

async function make(t) {
  const sandbox = await Sandbox.create(options)
  t.after(() => sandbox.kill())
  return sandbox
}

test('a killed node is not noticed', async (t) => {
  const sandbox = await make(t)
  const command = await atHalf(sandbox, '/tmp/gate')
  const back = await kill('node')
  await sandbox.files.write('/tmp/gate', '')
  assert.deepEqual(await ended(command), [STDOUT, STDERR, 7])
  await eventually(back)
})

test('a killed server costs the connection and no output', async (t) => {
  const sandbox = await make(t)
  const command = await atHalf(sandbox, '/tmp/gate')
  const terminal = await sandbox.pty.create({ rows: 24, cols: 80, onData: () => {}, timeoutMs: 300_000 })
  const typed = "echo on''e; until [ -e /tmp/gate ]; do sleep 0.05; done; echo tw''o; exit 5\n"
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode(typed))
  const closed = terminal.wait().catch((error) => error)
  const back = await kill('server')
  // Never an exit code that nobody saw.
  for (const broken of [await command.wait().catch((error) => error), await closed]) {
    assert.ok(broken instanceof Error && !(broken instanceof CommandExitError), broken)
  }
  await eventually(back)
  const again = await answered(() => sandbox.commands.connect(command.pid, { timeoutMs: 300_000 }))
  await sandbox.files.write('/tmp/gate', '')
  assert.deepEqual(await ended(again), [STDOUT, STDERR, 7])
  // Ended, and still there for whoever comes late.
  assert.deepEqual(await ended(await sandbox.commands.connect(command.pid)), [STDOUT, STDERR, 7])

  const screen = []
  const reopened = await sandbox.pty.connect(terminal.pid, { onData: (data) => void screen.push(data) })
  await assert.rejects(reopened.wait(), (error) => error.exitCode === 5)
  const shown = Buffer.concat(screen).toString()
  for (const word of ['one\r\n', 'two\r\n']) assert.equal(shown.split(word).length, 2, shown)
})
