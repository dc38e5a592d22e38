// What people come for: a task that an agent works on, up to the merge; and several agents that compete for one.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { BASE, api, closeBrowser, eventually, makeAgent, makeRepository, openPage, screen, signIn } from './browser.mjs'

after(closeBrowser)

const attemptsOf = (task) => api('GET', `/api/v1/tasks/${task}/attempts`)

test(
  'from sign-in to a merged pull request, by an agent that is watched and talked to',
  { timeout: 290_000 },
  async () => {
    await makeRepository('tower', { 'door.txt': 'closed\n' })
    const page = await openPage()
    await signIn(page, '/ui/settings/agents')
    await page.getByRole('button', { name: 'New agent' }).click()
    const agent = page.getByRole('dialog', { name: 'New agent' })
    await agent.getByLabel('Name').fill('opener')
    await agent.getByLabel('Program').selectOption('custom')
    // It waits for the test, so that what it says is seen while it works.
    const script =
      'echo looking at the door; until [ -e /tmp/go ]; do sleep 0.1; done; echo "open <b>wide</b>" > door.txt; echo it is open'
    await agent.getByLabel('Command', { exact: true }).fill(`sh -c '${script}' agent {prompt}`)
    await agent.getByRole('button', { name: 'Create' }).click()
    await page.getByRole('cell', { name: 'opener', exact: true }).waitFor()

    await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Board' }).click()
    // The first steps have such a button too, as long as there is no task.
    await page.getByRole('button', { name: 'New task' }).first().click()
    const form = page.getByRole('dialog', { name: 'New task' })
    await form.getByLabel('Title').fill('Open the door')
    await form.getByLabel('Description').fill('It is closed. Open it.')
    await form.getByLabel('Repository', { exact: true }).selectOption('tower')
    await form.getByLabel('Agent', { exact: true }).selectOption('opener')
    await form.getByLabel('Check', { exact: true }).fill('grep -q open door.txt')
    await form.getByRole('button', { name: 'Create', exact: true }).click()
    await page.getByRole('heading', { name: 'Open the door' }).waitFor()
    const task = page.url().match(/tasks\/([a-z0-9]+)/)[1]
    await page.getByRole('button', { name: 'Start', exact: true }).click()
    await page.getByRole('dialog', { name: 'Start' }).getByRole('button', { name: 'Start', exact: true }).click()

    await page.getByRole('log').getByText('looking at the door').waitFor()
    const tab = (name) => page.getByRole('navigation', { name: 'Parts of the task' }).getByRole('link', { name })
    await tab('Details').click()
    const steps = page.getByRole('list', { name: 'Steps of attempt 1' }).getByRole('listitem')
    await steps.filter({ hasText: 'in progress' }).filter({ hasText: 'Agent, turn 1' }).waitFor()
    const [{ sandbox_id: sandbox }] = await attemptsOf(task)
    await tab('Terminal').click()
    await page.locator('[data-terminal=live]').waitFor()
    await page.locator('.xterm-helper-textarea').focus()
    await page.keyboard.type('echo typed')
    await page.keyboard.press('Escape')
    await page.keyboard.type('.\n')
    await eventually(
      async () => (await screen(page)).some((row) => row.includes('echo typed')),
      () => screen(page),
    )
    await page.keyboard.press('Control+Shift+Enter')
    await tab('Conversation').click()
    await api('POST', `/api/v1/sandboxes/${sandbox}/exec`, { command: 'touch /tmp/go' })
    await page.getByRole('log').getByText('it is open').waitFor()
    await page.locator('[data-sonner-toast]').filter({ hasText: '“Open the door” is ready for review' }).waitFor()
    await tab('Details').click()
    await steps.filter({ hasText: 'done' }).filter({ hasText: 'Open the pull request' }).first().waitFor()
    await tab('Checks').click()
    await page.getByText('Attempt 1: passed').waitFor()
    await tab('Changes').click()
    await page.getByRole('region', { name: 'Changes of door.txt' }).getByText('open <b>wide</b>').waitFor()
    assert.equal((await api('GET', `/api/v1/tasks/${task}`)).state, 'in_review')

    await page.getByRole('button', { name: 'Comment on line 1' }).last().focus()
    await page.keyboard.press('Enter')
    await page.getByLabel('Comment on this line').fill('not too wide')
    await page.getByRole('button', { name: 'Comment', exact: true }).click()
    await page.locator('[data-sonner-toast]').filter({ hasText: 'Saved for the next attempt' }).waitFor()
    const { items: said } = await api('GET', `/api/v1/tasks/${task}/messages`)
    assert.deepEqual(
      said.map(({ body, about }) => ({ body, about })),
      [{ body: 'not too wide', about: { file: 'door.txt', line: 1 } }],
    )
    const diff = page.getByRole('region', { name: 'Changes of door.txt' })
    await diff.getByText('not too wide').waitFor()
    await page.getByRole('button', { name: 'Comment on removed line 1' }).focus()
    await page.keyboard.press('Enter')
    await page.getByLabel('Comment on this line').fill('was it?')
    await page.getByRole('button', { name: 'Comment', exact: true }).click()
    await diff.getByText('was it?').waitFor()
    const spoken = async () => {
      const { items: more } = await api('GET', `/api/v1/tasks/${task}/messages`)
      return more.find(({ body }) => body.endsWith('was it?'))
    }
    await eventually(async () => (await spoken()) !== undefined, 'the comment is sent')
    const last = await spoken()
    assert.equal(last.about.line ?? null, null, 'the number is one of a file that is gone')
    assert.match(last.body, /line 1 of it as it was before.*\n> closed\n/)

    await page.getByRole('button', { name: 'Merge', exact: true }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Merge', exact: true }).click()
    await page.getByText('merged', { exact: true }).waitFor()
    const { items: pulls } = await api('GET', '/api/v1/repositories/tower/pulls')
    assert.deepEqual(
      pulls.map(({ state, title }) => [state, title.includes('Open the door') || title.includes('open the door')]),
      [['merged', true]],
    )
    assert.deepEqual(page.complaints, [])
    await page.context().close()
  },
)

test(
  'three forks compete, are compared, and the one that is picked becomes a pull request',
  { timeout: 290_000 },
  async () => {
    await makeRepository('bridge', { 'plank.txt': 'loose\n', 'rope.txt': 'old\n' })
    for (const [name, script] of [
      ['careful', 'echo fixing; echo fixed > plank.txt'],
      ['thorough', 'echo fixing all of it; echo fixed > plank.txt; echo new > rope.txt; echo painted > rail.txt'],
      ['wrong', 'echo guessing; echo worse > plank.txt'],
    ]) {
      await makeAgent(name, script)
    }
    const page = await openPage()
    await signIn(page, '/ui/forks')
    await page.getByRole('button', { name: 'Let agents compete' }).click()
    const form = page.getByRole('dialog', { name: 'Let agents compete' })
    await form.getByLabel('Title').fill('Mend the bridge')
    await form.getByLabel('Description').fill('A plank is loose.')
    await form.getByLabel('Repository').selectOption('bridge')
    await form.getByLabel('Check', { exact: true }).fill('grep -q fixed plank.txt')
    await form.getByRole('button', { name: 'Add fork' }).click()
    for (const [at, name] of ['careful', 'thorough', 'wrong'].entries()) {
      await form.getByLabel(`Agent of fork ${at + 1}`).selectOption({ label: name })
    }
    await form.getByRole('button', { name: 'Start', exact: true }).click()

    const fork = (name) => page.getByRole('region', { name })
    await fork('Fork 3: wrong').getByRole('log').getByText('guessing').waitFor()
    await page.getByText('Pick a winner.').waitFor()
    await fork('Fork 1: careful').getByText('passed', { exact: true }).waitFor()
    await fork('Fork 3: wrong').getByText('failed (1)').waitFor()
    const id = page.url().match(/forks\/([a-z0-9]+)/)[1]
    const told = await api('GET', `/api/v1/sandboxes/fork/${id}`)
    for (const entry of told.entries) {
      await fork(`Fork ${entry.number}: ${entry.label}`).getByText(`place ${entry.rank}`).waitFor()
      for (const reason of entry.reasons) {
        const named = reason.replace(
          /\bentry (\d+)\b/g,
          (_, number) => told.entries.find((one) => one.number === Number(number)).label,
        )
        await fork(`Fork ${entry.number}: ${entry.label}`).getByText(named, { exact: true }).waitFor()
      }
    }

    await page.getByLabel('On the left').selectOption({ label: '1 careful' })
    await page.getByLabel('On the right').selectOption({ label: '2 thorough' })
    await page.getByRole('listitem', { name: 'plank.txt' }).getByText('alike').waitFor()
    const rope = page.getByRole('listitem', { name: 'rope.txt' })
    await rope.getByText('left alone').waitFor()
    await rope
      .getByRole('region', { name: 'Changes of rope.txt by thorough' })
      .getByText('new', { exact: true })
      .waitFor()

    await fork('Fork 2: thorough').getByRole('button', { name: 'Pick thorough' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Pick' }).click()
    await fork('Fork 2: thorough').getByText('winner').waitFor()
    await page.getByText('decided', { exact: true }).waitFor()
    await fork('Fork 2: thorough')
      .getByRole('link', { name: /Pull request/ })
      .click()
    await page.getByRole('region', { name: 'Changes of rail.txt' }).getByText('painted').waitFor()
    await eventually(
      async () =>
        (await api('GET', '/api/v1/sandboxes?state=running')).items.every(
          (one) => !told.entries.some((entry) => entry.sandbox_id === one.id),
        ),
      'no fork is left running',
    )
    assert.deepEqual(page.complaints, [])
    await page.context().close()
  },
)
