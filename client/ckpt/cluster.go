package ckpt

import (
	"context"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// cluster is what this package needs of a client. Methods may be called concurrently; errors
// are *moraine.Error.
type cluster interface {
	// Meta makes one request, retried across failovers under one number.
	Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
	// create makes an unlinked file in the tenant of the directory near. Its bytes are acknowledged
	// at level, memory or nvme. deferred, with memory, puts off the device writes: near is the directory
	// of a step that stays in memory.
	create(ctx context.Context, near moraine.InodeID, level moraine.Level, deferred bool) (fileWriter, error)
	// open opens a file by its number, linked or not.
	open(ctx context.Context, inode moraine.InodeID) (fileReader, error)
	// openObject opens the object that has all of a file: reads come from the bucket alone.
	openObject(ctx context.Context, inode moraine.InodeID) (fileReader, error)
	// leaseStep prevents the removal of a committed step until release, or until the session
	// that took the lease ends. release never ends a lease of a later session.
	leaseStep(ctx context.Context, key *wire.StepKey) (release func(context.Context) error, err error)
	// mkdirAll returns the directory at path, and makes it with its parents if missing.
	mkdirAll(ctx context.Context, path string) (moraine.InodeID, error)
}

// fileWriter is an unlinked file being written, by one goroutine.
type fileWriter interface {
	// Write appends p, which must not change until Commit or Abort has returned.
	Write(p []byte) (int, error)
	// Commit makes the content durable. The file can then be linked.
	Commit(ctx context.Context) (committed, error)
	// Abort discards what was written, and ends all use of the bytes given to Write. After Commit
	// it does nothing.
	Abort()
}

// committed is the result of a file's commit.
type committed struct {
	inode moraine.InodeID
	size  int64
	crc   uint32 // of the bytes as the client encoded them
	// protects is how many hosts may be lost, the minimum over all stripes. degraded counts
	// stripes below their scheme's promise.
	protects, degraded uint32
}

// fileReader reads one generation of a file. Methods may be called concurrently.
type fileReader interface {
	Size() int64
	// ReadRange fills dst from off on; fewer bytes are an error.
	ReadRange(ctx context.Context, dst []byte, off int64) error
	// InObject reports whether reads of n bytes from off on use an object.
	InObject(ctx context.Context, off, n int64) (bool, error)
	Close() error
}

// lookup finds an entry of a directory.
func lookup(ctx context.Context, c cluster, dir moraine.InodeID, name string) (*wire.Attr, error) {
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{
		Lookup: &wire.Lookup{Parent: uint64(dir), Name: name}}})
	if err != nil {
		return nil, err
	}
	return resp.GetEntry().GetAttr(), nil
}

// splitPath splits a run's path into its parent directory and its name.
func splitPath(path string) (dir, name string) {
	path = "/" + strings.Trim(path, "/")
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}
