package delegation

import (
	"fmt"
	"maps"
	"slices"

	"github.com/morainefs/moraine"
)

// faults are what changes of inodes lost, until a call returns it.
type faults map[uint64]error

// maxFaults bounds the remembered errors.
const maxFaults = 1024

func (f faults) add(inode uint64, err error) {
	if _, ok := f[inode]; ok || len(f) < maxFaults {
		f[inode] = err
	}
}

// take returns, once, what changes of an inode lost.
func (f faults) take(inode uint64) error {
	err := f[inode]
	delete(f, inode)
	return err
}

// takeAll returns, once, what changes of any inodes lost.
func (f faults) takeAll() error {
	if len(f) == 0 {
		return nil
	}
	inodes := slices.Sorted(maps.Keys(f))
	err := f[inodes[0]]
	clear(f)
	return &moraine.Error{Op: "batch", Ref: moraine.InodeID(inodes[0]).String(), Kind: moraine.KindOf(err),
		Err: fmt.Errorf("changes of %d inodes in delegated directories are lost: the first: %w", len(inodes), err)}
}

// Fault returns, once, what a change of an inode, or in a directory, lost. For inode 0 it returns what
// any change lost of which nobody has heard, and how many inodes that concerns.
func (d *Desk) Fault(inode uint64) error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if inode == 0 {
		return d.faults.takeAll()
	}
	return d.faults.take(inode)
}

// lost records that a change is lost. The caller holds the mutex.
func (d *table) lost(c *change, err error) {
	c.err = err
	d.Metrics.DelegatedLost.Inc()
	d.Log.Error("a change in a delegated directory is lost", "change", nameOf(c.wire), "inode", c.node.attr.Inode, "name", c.node.name, "err", err)
	for _, inode := range c.about {
		d.faults.add(inode, err)
	}
	if c.wire.Answered { // its directory may be synced, while nobody has the file open
		d.faults.add(c.node.attr.Parent, err)
	}
}
