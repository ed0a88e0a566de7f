package ckpt

import (
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
)

// ReadOptions bound what the reads of one Checkpoint take. The zero value of each field means its
// default.
type ReadOptions struct {
	// MemoryBytes bounds the memory into which short ranges are read together, over all reads of
	// the Checkpoint at once. Ranges of 256 KiB and more go straight into the caller's buffers. The
	// client has a bound of its own for what it rebuilds (client.Config.MemoryBytes). Default 64
	// MiB, at least 4 MiB.
	MemoryBytes int64
	// OverRead bounds the bytes between short ranges that are read with them, as a share of the
	// bytes wanted. More makes fewer and larger requests. Bytes of a block of 4 KiB of which
	// another byte is wanted do not count: servers read and verify whole blocks. Default 0.02; negative:
	// none.
	OverRead float64
	// From is the level from which all bytes come: object, the bucket alone, though devices have them,
	// too. Resolve fails with NotFound if the bucket has not all of the step's index, a read if it has not
	// all of the file, and both with PermissionDenied in a session that is confined to a directory.
	// Default: the nearest place that has them.
	From moraine.Level
}

const (
	defaultReadMemory = 64 << 20
	defaultOverRead   = 0.02
)

func (o *ReadOptions) setDefaults() {
	if o.MemoryBytes == 0 {
		o.MemoryBytes = defaultReadMemory
	}
	switch {
	case o.OverRead == 0:
		o.OverRead = defaultOverRead
	case o.OverRead < 0:
		o.OverRead = 0
	}
}

func (o *ReadOptions) validate() error {
	if o.MemoryBytes < windowBytes {
		return invalid("ckpt.Resolve", "", fmt.Errorf("ReadOptions.MemoryBytes is %d: give at least %d", o.MemoryBytes, windowBytes))
	}
	if o.From != 0 && o.From != moraine.Object {
		return invalid("ckpt.Resolve", "", fmt.Errorf("ReadOptions.From is %s: give object, or nothing", o.From))
	}
	return nil
}

// readMemory is the budget of the reads of one Checkpoint.
func (o *ReadOptions) readMemory() *limit.Semaphore {
	return limit.NewSemaphore(o.MemoryBytes, limit.Resource{Name: "memory of a restore", Advice: "give ReadOptions.MemoryBytes more"})
}

// BadRange is a range of a file whose copy at a level was corrupt or lost when it was read.
type BadRange struct {
	// File is the name of the file in the step's directory.
	File          string
	Offset, Bytes int64
	// Level of the copy: local (the memory of this node), memory (that of the chunkservers), nvme (their
	// devices), or object.
	Level moraine.Level
	// Err says what is wrong with it.
	Err error
}

// maxBadRanges bounds the list of a Checkpoint.
const maxBadRanges = 1000

// BadRanges returns the copies that reads of k found corrupt or lost, in the order in which they
// found them, the first 1,000 at most. A read that returned no error got the right bytes of these
// ranges from the next level, or from a copy that another rank saved.
func (k *Checkpoint) BadRanges() []BadRange { return k.files.badRanges() }

// isDamage reports whether another copy may have the bytes that a read did not get.
func isDamage(err error) bool {
	return errors.Is(err, moraine.Corrupt) || errors.Is(err, moraine.Lost)
}
