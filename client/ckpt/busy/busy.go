// Package busy names what a save does while the memory is full of earlier ones. It does nothing itself.
//
// One path through it: a trainer sets ckpt.BeginOptions.Busy to Supersede -> Begin asks the agent of the
// node for it -> the agent aborts older steps that nobody writes, once the new part is sealed.
package busy

// Policy says what a save does while the memory is full of earlier ones.
type Policy int

const (
	// Wait waits until an earlier save has been written.
	Wait Policy = iota
	// Skip lets Begin fail with Busy. Without an agent it needs BeginOptions.Bytes.
	Skip
	// Supersede waits as Wait does. But once this save is sealed, the agent aborts older steps of the
	// rank that it has not begun to write, for all ranks. It needs an agent, and room for four parts of
	// each rank. docs/semantics/checkpoints.md says which steps it never aborts.
	Supersede
)
