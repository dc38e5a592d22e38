// How the agent, the repository and the task of the demo are known.
export const DEMO_AGENT = "Demo agent (scripted, no model)";
export const DEMO_REPOSITORY = /^demo-shop(-\d+)?$/;
export const DEMO_LABEL = "demo";

export const isDemoAgent = (agent: { name: string }) => agent.name === DEMO_AGENT;
