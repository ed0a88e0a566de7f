package stripeio

import (
	"slices"

	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/wire"
)

// A program that reads the small files of a directory, one after the other or at random, waits for a request
// each time. The request for one file also brings others of its directory that nobody has read yet. Each
// file that is requested pays for one ahead, and for two if it was itself read ahead. So reads of single
// files bring at most as many in vain.
const (
	// smallAhead is how many files one request brings besides its own.
	smallAhead = 15
	// maxSmallCredit bounds the files that are paid for.
	maxSmallCredit = 64
)

// earn pays for files ahead. The caller holds the mutex.
func (c *inlineCache) earn(files int) { c.credit = min(c.credit+files, maxSmallCredit) }

// spend takes those of the files that the cache does not have, as far as they are paid for.
func (c *inlineCache) spend(inodes []uint64) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.earn(1)
	inodes = slices.DeleteFunc(inodes, func(inode uint64) bool { return c.of[inode] != nil })
	inodes = inodes[:min(len(inodes), c.credit)]
	c.credit -= len(inodes)
	return inodes
}

// smallBeside returns the files whose content should come with that of a small file.
func (e *Engine) smallBeside(inode uint64) []uint64 {
	near := session.SmallBeside(e.meta, inode, smallAhead)
	if near == nil {
		return nil
	}
	return e.inline.spend(near)
}

// keepAlso keeps the content of small files that came with that of another.
func (c *inlineCache) keepAlso(files []*wire.SmallFile) {
	for _, f := range files {
		p, err := pageOf(&wire.ExtentsReply{Attr: &wire.Attr{Generation: f.Generation}, Extents: f.Extents}, f.Inode, 0)
		if err != nil {
			continue // who reads the file gets the error
		}
		c.keep(f.Inode, f.Generation, p, true)
	}
}
