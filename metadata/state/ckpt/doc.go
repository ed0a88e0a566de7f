// Package ckpt has training runs and their checkpoints: attempts, steps, parts of ranks, seals,
// publication and removal. It also has Remove and RemoveTree of files, since either may remove a
// checkpoint.
//
// A launch opens a run and starts an attempt. Each rank begins a step, writes its files and seals
// its part. The last seal queues a COMMIT_STEP job; of a step of many ranks, the first does. The mover
// that leases the job writes the index, and CommitStep publishes the checkpoint by a rename. A step whose ranks are silent is aborted.
package ckpt

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
