import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'

import { Sandbox } from '@e2b/code-interpreter'

let sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 600_000, envs: { PLACE: "it's here" } })
})

after(async () => {
  await sandbox?.kill()
})

test('state is kept, and the last value is the result', async () => {
  await sandbox.runCode('x = 41')
  const done = await sandbox.runCode('x += 1\nx')
  assert.equal(done.text, '42')
  assert.equal(done.results[0].isMainResult, true)
})

test('output comes while the code runs', async () => {
  const out = []
  const code = 'import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.3)\n"é\\u2028😀"'
  const done = await sandbox.runCode(code, { onStdout: (message) => out.push(message.line) })
  assert.equal(done.logs.stdout.join(''), '0\n1\n2\n')
  assert.ok(out.length >= 2)
  assert.equal((await sandbox.runCode('print("é\\u2028😀" * 20000, end="")')).logs.stdout.join(''), 'é\u2028😀'.repeat(20000))
})

test('an exception has its name, value and traceback', async () => {
  const { error } = await sandbox.runCode('1/0')
  assert.equal(error.name, 'ZeroDivisionError')
  assert.equal(error.value, 'division by zero')
  assert.match(error.traceback, /line 1/)
})

test('a chart is a picture and data, a frame is data', async () => {
  const chart = await sandbox.runCode(
    'import matplotlib.pyplot as plt\nplt.bar(["a", "b"], [1, 2])\nplt.xlabel("kind")\nplt.show()',
  )
  assert.ok(chart.results[0].png)
  assert.equal(chart.results[0].chart.type, 'bar')
  assert.deepEqual(
    chart.results[0].chart.elements.map(({ label, value }) => [label, value]),
    [['a', 1], ['b', 2]],
  )
  const frame = await sandbox.runCode('import pandas as pd\npd.DataFrame({"z": [1], "a": [2]})')
  assert.deepEqual(Object.keys(frame.results[0].data), ['z', 'a'])
})

test('contexts and languages', async () => {
  const context = await sandbox.createCodeContext({ language: 'js', cwd: '/tmp' })
  assert.equal((await sandbox.runCode('process.cwd()', { context })).text, '/tmp')
  await sandbox.runCode('var kept = 1', { context })
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('typeof kept', { context })).text, 'undefined')
  await sandbox.removeCodeContext(context)
  assert.ok(!(await sandbox.listCodeContexts()).some(({ id }) => id === context.id))
  assert.equal((await sandbox.runCode('const n: number = 3; n', { language: 'ts' })).text, '3')
  assert.deepEqual((await sandbox.runCode('print("hi")', { language: 'r' })).logs.stdout, ['[1] "hi"\n'])
  const shell = await sandbox.runCode('echo $PLACE $CALL', { language: 'bash', envs: { CALL: '`x`' } })
  assert.deepEqual(shell.logs.stdout, ["it's here `x`\n"])
  await assert.rejects(sandbox.runCode('1', { language: 'cobol' }))
})

test('a client that leaves interrupts its code', async () => {
  await assert.rejects(sandbox.runCode('while True: pass', { timeoutMs: 2000 }))
  assert.equal((await sandbox.runCode('x', { timeoutMs: 20_000 })).text, '42')
})

test('a kernel that dies is started again', async () => {
  const died = await sandbox.runCode('import os; os._exit(1)')
  assert.equal(died.error.name, 'ContextRestarting')
  assert.equal((await sandbox.runCode('1 + 1')).text, '2')
})
