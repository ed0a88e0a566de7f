package ckpt

import (
	"context"
	"sync/atomic"

	"github.com/morainefs/moraine/internal/limit"
)

// Checkpoint is an open, committed step. Methods may be called concurrently.
type Checkpoint struct {
	// Info is the step as of the opening.
	Info StepInfo

	c       cluster
	files   *stepFiles
	opts    ReadOptions
	memory  *limit.Semaphore            // of windows
	release func(context.Context) error // ends the read lease
	index   *indexReader
	top     *indexTop
	prefer  uint32 // which replica this rank reads

	node      nodeParts // parts in the memory of this node, by rank; they may be none
	nodeBytes atomic.Int64
	closed    atomic.Bool
}

// Files lists the files of the checkpoint; the caller must not change them.
func (k *Checkpoint) Files() []FileInfo { return k.top.files }

// World returns how many ranks saved the checkpoint.
func (k *Checkpoint) World() uint32 { return k.top.world }

// BytesRead returns how many bytes of parts have been read through k.
func (k *Checkpoint) BytesRead() int64 { return k.files.bytesRead.Load() }

// NodeBytes returns how many bytes have been read from the memory of this node, and not from the
// cluster.
func (k *Checkpoint) NodeBytes() int64 { return k.nodeBytes.Load() + k.files.bytesShared.Load() }

// Close releases the checkpoint: from here on it may be removed. Reads must have ended. A
// second Close does nothing.
func (k *Checkpoint) Close() error {
	if k.closed.Swap(true) {
		return nil
	}
	releaseStep(context.Background(), k.release)
	k.node.close()
	k.files.close()
	return k.index.file.Close()
}
