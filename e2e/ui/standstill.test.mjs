// Attempts that wait for a person, and schedules, by mouse and keys: a budget is raised, an agent is interrupted, a task starts
// by the clock.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { BASE, api, closeBrowser, eventually, makeAgent, makeRepository, openPage, signIn } from './browser.mjs'

after(closeBrowser)

const shots = process.env.COFFER_E2E_SHOTS
const shoot = (page, name) => (shots ? page.screenshot({ path: `${shots}/${name}.png` }) : undefined)

const until = (task, so) =>
  eventually(
    async () => {
      const found = await api('GET', `/api/v1/tasks/${task}`)
      return so(found) && found
    },
    () => api('GET', `/api/v1/tasks/${task}`).then(JSON.stringify),
  )

async function started(title, agent, more = {}) {
  const task = await api('POST', '/api/v1/tasks', { title, repository: 'desk', agent_id: agent, ...more })
  await api('POST', `/api/v1/tasks/${task.id}/start`, {})
  return task.id
}

test(
  'a spent budget is raised on the page, and an agent is interrupted and goes on',
  { timeout: 290_000 },
  async () => {
    await makeRepository('desk', { 'a.txt': 'a\n' })
    const spent = '{"type": "result", "subtype": "success", "total_cost_usd": 2.5, "result": "spent"}'
    const script = `echo '${spent}'; echo $COFFER_TURN >> work; if [ $COFFER_TURN = 1 ]; then sleep 600; fi`
    const definition = { preset: 'custom', command: ['sh', '-c', script, 'agent', '{prompt}'], output: 'claude_stream' }
    const { id: spender } = await api('POST', '/api/v1/agents', { name: 'spender', definition })
    const task = await started('Count the drawers', spender, { budget: 1 })
    await until(task, (found) => found.needs_attention?.code === 'budget_wanted')

    const page = await openPage()
    await signIn(page)
    await page.goto(`${BASE}/ui/board`)
    const card = page.getByRole('listitem').filter({ hasText: 'Count the drawers' })
    await card.getByRole('button', { name: 'Raise and continue' }).waitFor()
    await shoot(page, 'board-budget')
    await page.goto(`${BASE}/ui/tasks/${task}`)
    await page.getByText('The budget is spent').waitFor()
    await shoot(page, 'task-budget')
    await page.emulateMedia({ colorScheme: 'dark' })
    await shoot(page, 'task-budget-dark')
    await page.setViewportSize({ width: 390, height: 844 })
    await shoot(page, 'task-budget-phone')
    const wide = await page.evaluate(() => document.documentElement.scrollWidth)
    assert.ok(wide <= 390, `the page is ${wide} px wide on a phone`)
    await page.setViewportSize({ width: 1440, height: 900 })
    await page.emulateMedia({ colorScheme: 'light' })
    const budget = page.getByLabel('New budget (USD)')
    assert.equal(await budget.inputValue(), '4')
    await budget.fill('2')
    assert.ok(await page.getByRole('button', { name: 'Raise and continue' }).isDisabled(), '2 is spent already')
    await budget.fill('9')
    await page.getByRole('button', { name: 'Raise and continue' }).click()
    const done = await until(task, (found) => found.state === 'in_review')
    assert.equal(done.budget, 9)
    await page.getByText('The budget is spent').waitFor({ state: 'detached' })

    const worker = await makeAgent('worker', 'if [ $COFFER_TURN = 1 ]; then sleep 600; fi; echo done > work')
    const second = await started('Turn the key', worker)
    await page.goto(`${BASE}/ui/tasks/${second}`)
    const interrupt = page.getByRole('button', { name: 'Interrupt' })
    await eventually(
      async () => (await interrupt.count()) === 1 && (await interrupt.isEnabled()),
      'the agent can be interrupted',
    )
    await interrupt.click()
    await page.getByText('Interrupted, waits for you').first().waitFor()
    await shoot(page, 'task-interrupted')
    await page.getByRole('button', { name: 'Continue' }).click()
    await until(second, (found) => found.state === 'in_review')
    assert.deepEqual(page.complaints, [])
    await page.context().close()
  },
)

test('a schedule is created, run, paused and removed', { timeout: 120_000 }, async () => {
  await makeAgent('clerk', 'echo $COFFER_TASK_ID > work')
  await makeRepository('ledger-of-nights', { 'a.txt': 'a\n' })
  const page = await openPage()
  await signIn(page)
  await page.goto(`${BASE}/ui/settings/schedules`)
  await page.getByText('No schedules yet').waitFor()
  await shoot(page, 'schedules-empty')
  await page.getByLabel('Name', { exact: true }).fill('nightly')
  await page.getByLabel('Title of its tasks').fill('Update of {{date}}')
  await page.getByLabel('Agent', { exact: true }).selectOption({ label: 'clerk' })
  await page.getByLabel('Repository', { exact: true }).selectOption({ label: 'ledger-of-nights' })
  await page.getByLabel('Cron').fill('99 * * * *')
  await page.getByRole('button', { name: 'Create' }).click()
  await page.getByRole('alert').filter({ hasText: 'minute' }).waitFor()
  await page.getByLabel('When').selectOption({ label: 'every night at 02:00' })
  await page.getByRole('button', { name: 'Create' }).click()
  const row = page.getByRole('row').filter({ hasText: 'nightly' })
  await row.waitFor()
  await row.getByRole('button', { name: 'Run now' }).click()
  await row.getByText('started').waitFor()
  await shoot(page, 'schedules')
  await row.getByRole('button', { name: 'Pause nightly' }).click()
  await row.getByText('paused').waitFor()
  await row.getByRole('button', { name: 'Remove' }).click()
  await page.getByRole('button', { name: 'Remove' }).last().click()
  await page.getByText('No schedules yet').waitFor()
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})
