// How cards of the board are moved: by the mouse to where it points, by keys from column to column.
import {
  closestCorners,
  pointerWithin,
  type ClientRect,
  type CollisionDetection,
  type KeyboardCoordinateGetter,
} from "@dnd-kit/core";
import { sortableKeyboardCoordinates } from "@dnd-kit/sortable";

const isColumn = (id: string | number) => String(id).startsWith("column:");
const middleOf = (rect: ClientRect) => rect.left + rect.width / 2;

/**
 * A mouse drops where it points. Keys have no pointer: they drop in the column below the card's middle, on the card there
 * that is nearest, because the corners of a tall, empty column are farther away than those of a card next to it.
 */
export const inColumns: CollisionDetection = (drag) => {
  if (drag.pointerCoordinates !== null) {
    const pointed = pointerWithin(drag);
    return pointed.length > 0 ? pointed : closestCorners(drag);
  }
  const at = middleOf(drag.collisionRect);
  const within = (id: string | number) => {
    const rect = drag.droppableRects.get(id);
    return rect !== undefined && rect.left <= at && at <= rect.left + rect.width;
  };
  const column = drag.droppableContainers.find(({ id }) => isColumn(id) && within(id));
  const cards = drag.droppableContainers.filter(({ id }) => !isColumn(id) && within(id));
  if (cards.length > 0) return closestCorners({ ...drag, droppableContainers: cards });
  return column === undefined ? closestCorners(drag) : [{ id: column.id }];
};

/** The column next to the one at `from`, by their left edges. */
export function nextColumn(columns: ClientRect[], from: number, step: 1 | -1): ClientRect | undefined {
  const sorted = [...columns].sort((a, b) => a.left - b.left);
  const at = sorted.findIndex((rect) => rect.left <= from && from <= rect.left + rect.width);
  return at === -1 ? undefined : sorted[at + step];
}

export const steps: KeyboardCoordinateGetter = (event, drag) => {
  const step = event.code === "ArrowLeft" ? -1 : event.code === "ArrowRight" ? 1 : undefined;
  const rect = drag.context.collisionRect;
  if (step === undefined || rect === null) return sortableKeyboardCoordinates(event, drag);
  event.preventDefault();
  const rects = [...drag.context.droppableRects].flatMap(([id, one]) => (isColumn(id) ? [one] : []));
  const next = nextColumn(rects, middleOf(rect), step);
  if (next === undefined) return undefined;
  const lowest = Math.max(next.top, next.top + next.height - rect.height);
  return { x: next.left + (next.width - rect.width) / 2, y: Math.min(Math.max(rect.top, next.top), lowest) };
};
