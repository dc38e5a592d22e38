// The notebook of a sandbox: cells, what they show, and that hostile output stays output. The interpreter is a stand-in, so
// that a cell says exactly what the test wants; the real one is tested in the suite `code`.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, test } from 'node:test'
import { BASE, api, closeBrowser, eventually, makeSandbox, openPage, signIn } from './browser.mjs'

after(closeBrowser)

const STAND_IN = readFileSync(new URL('./interpreter.py', import.meta.url), 'utf8')
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

async function interpreted(name) {
  const { id } = await makeSandbox({ metadata: { name } })
  const command = `cat > /tmp/interpreter.py <<'END'\n${STAND_IN}\nEND`
  await api('POST', `/api/v1/sandboxes/${id}/exec`, { command })
  await api('POST', `/api/v1/sandboxes/${id}/exec`, { command: 'python3 /tmp/interpreter.py', background: true })
  const listens = 'for n in $(seq 100); do curl -fs localhost:49999/health && exit; sleep 0.1; done; exit 1'
  const ran = await api('POST', `/api/v1/sandboxes/${id}/exec`, { command: listens })
  assert.equal(ran.exit_code, 0)
  return id
}

const cell = (page, number) => page.getByRole('region', { name: `Cell ${number}`, exact: true })

const output = (page, number) => page.getByRole('group', { name: `Output of cell ${number}`, exact: true })

async function write(page, number, lines) {
  await page.getByLabel(`Code of cell ${number}`, { exact: true }).fill(JSON.stringify(lines))
}

async function phase(page, number, wanted) {
  await page.locator(`[aria-label="Cell ${number}"][data-phase=${wanted}]`).waitFor()
}

test('a sandbox without an interpreter says where notebooks run', async () => {
  const { id } = await makeSandbox({ metadata: { name: 'plain' } })
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/notebook`)
  await page.getByText('This sandbox has no code interpreter').waitFor()
  await page.getByText('coffer template build code-interpreter-v1').waitFor()
  await page.getByRole('link', { name: 'Create a sandbox of it' }).click()
  await page.getByRole('dialog', { name: 'New sandbox' }).waitFor()
  assert.match(page.url(), /template=code-interpreter-v1/)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('cells run, show everything that code can show, and are there again after a reload', async () => {
  const id = await interpreted('notebook')
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}`)
  await page.getByRole('link', { name: 'Notebook', exact: true }).click()
  await write(page, 1, [
    { type: 'stdout', text: 'hello\n' },
    { type: 'stderr', text: 'careful\n' },
    { type: 'result', text: '2', is_main_result: true, extra: {} },
  ])
  await page.getByLabel('Code of cell 1').press('Shift+Enter')
  await phase(page, 1, 'done')
  await output(page, 1).getByText('hello').waitFor()
  await output(page, 1).getByText('careful').waitFor()
  await cell(page, 1).getByText('[1]').waitFor()

  // Shift+Enter went on to a new cell.
  const data = { month: ['Jan', 'Feb'], sum: [120, null] }
  await write(page, 2, [{ type: 'result', text: 'frame', html: '<table>', data, extra: {}, is_main_result: true }])
  await page.getByRole('button', { name: 'Run cell 2' }).click()
  const table = cell(page, 2).getByRole('region', { name: 'Table' })
  await table.getByRole('columnheader', { name: 'month' }).waitFor()
  await table.getByRole('cell', { name: '120' }).waitFor()
  await cell(page, 2).getByText('2 rows, 2 columns').waitFor()

  await page.getByRole('button', { name: 'Add a cell after cell 2' }).click()
  const chart = { type: 'bar', title: 'Sales', elements: [{ label: 'Jan', group: 'a', value: 7 }] }
  await write(page, 3, [{ type: 'result', text: '<Figure>', png: PIXEL, chart, extra: {}, is_main_result: false }])
  await page.getByRole('button', { name: 'Run cell 3' }).click()
  const picture = cell(page, 3).getByRole('img')
  await eventually(() => picture.evaluate((image) => image.naturalWidth === 1), 'the picture is drawn')
  await cell(page, 3).getByRole('button', { name: 'Chart data' }).click()
  await cell(page, 3).getByRole('cell', { name: '7' }).waitFor()

  await page.getByRole('button', { name: 'Cell', exact: true }).click()
  await write(page, 4, [
    { type: 'error', name: 'ZeroDivisionError', value: 'by zero', traceback: '\x1b[31mline 1\x1b[0m' },
  ])
  await page.getByRole('button', { name: 'Run cell 4' }).click()
  await phase(page, 4, 'failed')
  await cell(page, 4).getByRole('alert').getByText('ZeroDivisionError: by zero').waitFor()
  await output(page, 4).getByText('Traceback', { exact: true }).click()
  await output(page, 4).getByText('line 1', { exact: true }).waitFor()

  // What runs can be stopped, which the interpreter sees as a client that left.
  await page.getByRole('button', { name: 'Cell', exact: true }).click()
  await write(page, 5, [{ type: 'stdout', text: 'began\n' }, { wait: true }])
  await page.getByRole('button', { name: 'Run cell 5' }).click()
  await output(page, 5).getByText('began').waitFor()
  await page.getByRole('button', { name: 'Stop cell 5' }).click()
  await phase(page, 5, 'stopped')
  await output(page, 5).getByText('You stopped it.').waitFor()

  // Another tab and back loses nothing.
  await page.getByRole('link', { name: 'Events', exact: true }).click()
  await page.getByRole('link', { name: 'Notebook', exact: true }).click()
  await output(page, 1).getByText('hello').waitFor()

  // A restart asks first.
  await page.getByRole('button', { name: 'Restart', exact: true }).click()
  const question = page.getByRole('dialog', { name: 'Restart contexts?' })
  await question.getByRole('button', { name: 'Restart', exact: true }).click()
  await page.getByText('Restarted; variables are gone').waitFor()
  await page.getByRole('button', { name: 'Run cell 1' }).click()
  await phase(page, 1, 'done')
  await cell(page, 1).getByText('[1]').waitFor()

  // The export is a notebook with what ran.
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    page.getByRole('button', { name: 'Export .ipynb' }).click(),
  ])
  assert.equal(download.suggestedFilename(), `${id}.ipynb`)
  const notebook = JSON.parse(readFileSync(await download.path(), 'utf8'))
  assert.equal(notebook.nbformat, 4)
  assert.equal(notebook.cells.length, 6)
  assert.equal(notebook.cells[3].outputs[0].ename, 'ZeroDivisionError')

  await page.reload()
  await cell(page, 6).waitFor()
  await cell(page, 2).getByRole('region', { name: 'Table' }).getByRole('cell', { name: '120' }).waitFor()
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('hostile output stays output', async () => {
  const id = await interpreted('hostile output')
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/notebook`)
  const reach = `parent.reached = top.reached = 1; alert(1); fetch('/api/v1/keys')`
  const html = [
    `<p>shown</p><script>${reach}</script>`,
    `<img src=x onerror="${reach}"><svg onload="${reach}"></svg><a id=out href="https://elsewhere.test/">leave</a>`,
    `<meta http-equiv=refresh content="0;url=https://elsewhere.test/refresh">`,
    `<link rel=stylesheet href=https://elsewhere.test/a.css><img src=https://elsewhere.test/a.png>`,
    `<iframe src=https://elsewhere.test/frame></iframe><object data=https://elsewhere.test/o></object>`,
    `<form action=https://elsewhere.test/form><input name=a value=b><button>send</button></form>`,
    `<base href=https://elsewhere.test/><style>@import url(https://elsewhere.test/b.css)</style>`,
  ].join('')
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" onload="${reach}"><script>${reach}</script><image href="https://elsewhere.test/i.png"/></svg>`
  await write(page, 1, [
    { type: 'result', html, extra: {}, is_main_result: true },
    { type: 'result', svg, extra: {}, is_main_result: false },
    { type: 'result', javascript: reach, extra: {}, is_main_result: false },
    { type: 'result', markdown: `<script>${reach}</script>[a](javascript:alert(1))`, extra: {}, is_main_result: false },
    { type: 'stdout', text: `<script>${reach}</script>\u202e` },
    { type: 'error', name: '<b>E</b>', value: '<img src=x onerror=alert(1)>', traceback: '' },
  ])
  await page.getByRole('button', { name: 'Run cell 1' }).click()
  await phase(page, 1, 'failed')
  const frame = cell(page, 1).locator('iframe')
  assert.equal(await frame.getAttribute('sandbox'), '')
  const inside = frame.contentFrame()
  await inside.getByText('shown').waitFor()
  await inside.getByRole('button', { name: 'send' }).click()
  await inside.locator('#out').click()
  await output(page, 1).getByText('<b>E</b>: <img src=x onerror=alert(1)>').waitFor()
  // Time for what must not happen: another call, through the server and back.
  await page.getByRole('button', { name: 'Add a cell after cell 1' }).click()
  await write(page, 2, [{ type: 'stdout', text: 'later' }])
  await page.getByRole('button', { name: 'Run cell 2' }).click()
  await phase(page, 2, 'done')
  assert.equal(await page.evaluate(() => window.reached), undefined)
  assert.ok(page.url().startsWith(`${BASE}/ui/sandboxes/`))
  // The policy's refusals are what stopped it; nothing was asked of anybody, and no script ran.
  assert.deepEqual(
    page.complaints.filter((complaint) => !complaint.startsWith('policy:')),
    [],
  )
  await page.context().close()
})

test('a fork goes on from a cell, and those who only read cannot run', async () => {
  const id = await interpreted('forked')
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/notebook`)
  for (const number of [1, 2]) {
    await write(page, number, [{ type: 'stdout', text: `output ${number}` }])
    await page.getByLabel(`Code of cell ${number}`).press('Shift+Enter')
    await phase(page, number, 'done')
  }
  await page.getByRole('button', { name: 'Fork from cell 1' }).click()
  const dialog = page.getByRole('dialog', { name: 'Fork from this cell' })
  await dialog.getByText('One cell has run after it').waitFor()
  await dialog.getByRole('button', { name: 'Fork', exact: true }).click()
  const { memory_snapshot: memory } = await api('GET', '/api/v1/host')
  if (memory) {
    await page.waitForURL((url) => !url.pathname.includes(id))
    await cell(page, 1).getByText('ran before the fork').waitFor()
    await output(page, 1).getByText('output 1').waitFor()
    assert.equal(await output(page, 2).count(), 0)
    // The interpreter of the fork runs with the state of the source: its counter goes on.
    await page.getByRole('button', { name: 'Add a cell after cell 1' }).click()
    await write(page, 2, [{ type: 'stdout', text: 'another way' }])
    await page.getByRole('button', { name: 'Run cell 2' }).click()
    await cell(page, 2).getByText('[3]').waitFor()
    await page.reload()
    await cell(page, 1).getByText('ran before the fork').waitFor()
    await output(page, 2).getByText('another way').waitFor()
    // Forks have a quota, which other tests need too.
    await api('DELETE', `/api/v1/sandboxes/${new URL(page.url()).pathname.split('/').at(-2)}`)
  } else {
    await dialog.getByRole('alert').waitFor()
  }
  assert.deepEqual(page.complaints, [])
  await page.context().close()

  const { key } = await api('POST', '/api/v1/keys', { name: 'reads notebooks', role: 'read' })
  const reader = await openPage()
  await signIn(reader, `/ui/sandboxes/${id}/notebook`, key)
  await output(reader, 2).getByText('output 2').waitFor()
  assert.equal(await reader.getByRole('button', { name: 'Run cell 1' }).getAttribute('aria-disabled'), 'true')
  assert.deepEqual(reader.complaints, [])
  await reader.context().close()
})
