// Package ckpt has training runs and their checkpoints: attempts, steps, parts of
// ranks, seals, publication and removal. Remove and RemoveTree of files are here
// too, since either may remove a checkpoint.
//
// A launch opens a run and gets an attempt. Each rank begins a step, writes its
// files and seals its part. The last seal adds a COMMIT_STEP job; the mover that
// leases it writes the index, and CommitStep publishes the checkpoint by a
// rename. A step whose ranks are silent is aborted.
package ckpt
