// Much at once: what is drawn and what is held stays bounded, and nothing holds up the page. Times are told, and judged
// only with COFFER_E2E_SMOOTH=1.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import {
  api,
  closeBrowser,
  eventually,
  judgeSmoothness,
  makeSandbox,
  nextFrame,
  openPage,
  signIn,
  watchLongTasks,
} from './browser.mjs'

after(closeBrowser)

async function tenAtATime(all, act) {
  const done = []
  for (let at = 0; at < all.length; at += 10) done.push(...(await Promise.all(all.slice(at, at + 10).map(act))))
  return done
}

// All of a million takes a minute or more, which is for machines with nothing else to do.
const LINES = process.env.COFFER_E2E_SMOOTH === '1' ? 1_000_000 : 100_000

test('a thousand sandboxes are a few rows of the page', async (t) => {
  const page = await openPage()
  const made = new Date().toISOString()
  const sandbox = (at) => ({
    id: `x${String(at).padStart(24, '0')}`,
    state: at % 7 === 0 ? 'paused' : 'running',
    template: 'base',
    metadata: { name: `box ${at}` },
    cpu_count: 2,
    memory_mib: 512,
    disk_mib: 512,
    created_at: made,
    started_at: made,
    deadline: made,
    on_timeout: 'kill',
    auto_resume: false,
  })
  await page.route('**/api/v1/sandboxes?*', (route) => {
    const from = Number(new URL(route.request().url()).searchParams.get('cursor') ?? 0)
    const items = Array.from({ length: 200 }, (_, at) => sandbox(from + at))
    return route.fulfill({ json: { items, next: from + 200 < 1000 ? String(from + 200) : null } })
  })
  await signIn(page, '/ui/sandboxes')
  await page.getByText('1000 shown').waitFor()
  const longest = await watchLongTasks(page)
  const rows = page.getByRole('table', { name: 'Sandboxes' }).getByRole('row')
  await rows.filter({ hasText: 'box 3' }).first().hover()
  for (let turn = 0; turn < 60; turn += 1) {
    await page.mouse.wheel(0, 1000)
    await nextFrame(page)
  }
  await rows.filter({ hasText: 'box 999' }).waitFor()
  assert.ok((await rows.count()) < 60, 'only what is seen is drawn')
  await page.getByLabel('Filter').fill('box 77')
  await page.getByText('19 shown').waitFor()
  judgeSmoothness(t, 'scrolling and filtering 1,000 sandboxes', await longest())
  await page.context().close()
})

test('five hundred tasks on the board are filtered, scrolled and moved', async (t) => {
  const states = ['todo', 'in_progress', 'in_review', 'done']
  const numbers = Array.from({ length: 500 }, (_, at) => at)
  const made = await tenAtATime(numbers, (n) =>
    api('POST', '/api/v1/tasks', { title: `chore ${n}`, state: states[n % 4], labels: [`l${n % 9}`] }),
  )
  const page = await openPage()
  await signIn(page, '/ui/board')
  const column = page.getByRole('region', { name: 'To do', exact: true })
  await column.getByRole('heading', { name: /To do 1(2[5-9]|3)/ }).waitFor()
  assert.ok((await column.getByRole('listitem').count()) < 100, 'not all of a column is drawn')
  const longest = await watchLongTasks(page)
  await column.getByRole('listitem').first().hover()
  for (let turn = 0; turn < 40; turn += 1) {
    await page.mouse.wheel(0, 600)
    await nextFrame(page)
  }
  await column.getByRole('link', { name: /^chore 496\b/ }).waitFor()
  await page.getByLabel('Filter').fill('chore 499')
  await eventually(
    async () => (await page.getByRole('listitem').filter({ hasText: 'chore' }).count()) === 1,
    'what the filter leaves',
  )
  await page.getByLabel('Filter').fill('')
  await column.getByRole('listitem').filter({ hasText: 'chore 0' }).first().waitFor()
  // A move by somebody else, while all of it is there.
  const { items } = await api('GET', '/api/v1/tasks?state=todo&order=board&limit=200')
  const moved = items.find((task) => task.title === 'chore 0')
  await api('PATCH', `/api/v1/tasks/${moved.id}`, { state: 'done', place: 'first' })
  await page
    .getByRole('region', { name: 'Done', exact: true })
    .getByRole('link', { name: /^chore 0\b/ })
    .waitFor()
  judgeSmoothness(t, 'scrolling, filtering and a move among 500 tasks', await longest())
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await tenAtATime(made, ({ id }) => api('DELETE', `/api/v1/tasks/${id}`))
})

test(
  'a very long log is scrolled to its end and back, and little of it is held',
  { timeout: 190_000 + LINES },
  async (t) => {
    const { id } = await makeSandbox({ metadata: { name: 'talker' } })
    // No faster than it is read: what is kept for a reader that is behind is bounded.
    const command = `for part in $(seq 0 ${LINES / 50_000 - 1}); do seq $((part * 50000 + 1)) $((part * 50000 + 50000)); sleep 0.25; done`
    const { execution_id: execution } = await api('POST', `/api/v1/sandboxes/${id}/exec`, { command, timeout_s: 120 })
    assert.equal((await api('GET', `/api/v1/executions/${execution}`)).output_bytes_lost, 0)
    const page = await openPage()
    await signIn(page, `/ui/sandboxes/${id}/logs`)
    await page.getByLabel('Source').selectOption('stdout,stderr,pty')
    const log = page.getByRole('log')
    await log.getByText('1', { exact: true }).waitFor()
    const longest = await watchLongTasks(page)
    const began = performance.now()
    // The page itself goes to its end again and again: what is asked for and thrown away is all of the log.
    const seen = await log.evaluate(async (box, all) => {
      const told = () =>
        Number(
          /^([\d,. \u00a0]+) lines/
            .exec(document.querySelector('main [role=status]')?.textContent ?? '')?.[1]
            .replaceAll(/\D/g, '') ?? 0,
        )
      const most = { drawn: 0, held: 0, lines: 0 }
      let still = 0
      while (most.lines < all && still < 1500) {
        box.scrollTop = box.scrollHeight
        await new Promise((drawn) => requestAnimationFrame(drawn))
        still = told() === most.lines ? still + 1 : 0
        most.lines = told()
        most.drawn = Math.max(most.drawn, box.firstElementChild.childElementCount)
        most.held = Math.max(most.held, Number(box.dataset.heldLines))
      }
      return most
    }, LINES)
    assert.equal(seen.lines, LINES)
    assert.ok(seen.drawn < 250, `${seen.drawn} rows were drawn`)
    assert.ok(seen.held <= 13_000, `${seen.held} lines were held`)
    t.diagnostic(`${LINES} lines were scrolled through in ${Math.round((performance.now() - began) / 1000)} s`)
    await log.evaluate((box) => {
      box.scrollTop = 0
    })
    await log.getByText('1', { exact: true }).waitFor()
    await log.evaluate((box, row) => {
      box.scrollTop = row * 20
    }, LINES / 2)
    await log.getByText(String(LINES / 2 + 1), { exact: true }).waitFor()
    assert.ok(Number(await log.getAttribute('data-held-lines')) <= 13_000)
    judgeSmoothness(t, `scrolling a log of ${LINES} lines`, await longest())
    assert.deepEqual(page.complaints, [])
    await page.context().close()
    await api('DELETE', `/api/v1/sandboxes/${id}`)
  },
)
