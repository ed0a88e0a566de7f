package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// InodeRange is a range of a file to clone.
type InodeRange struct {
	Inode moraine.InodeID
	// Generation, unless it is 0, must be the file's; otherwise the clone fails with Stale.
	Generation moraine.Generation
	// Offset and Length are in bytes; Length 0 means to the end of the file.
	Offset, Length int64
}

// CloneFile makes dst a copy of the file src that shares its bytes; no byte moves. opts.Replace
// allows dst to replace an existing file; opts.Mode 0 means the mode of src. CrossTenant means
// that the caller must copy the bytes instead.
func (c *Client) CloneFile(ctx context.Context, src moraine.InodeID, dst string, opts CreateOptions) (Attr, error) {
	if opts.Mode == 0 {
		a, err := c.Inodes().stat(ctx, src)
		if err != nil {
			return Attr{}, retry.Wrap("client.CloneFile", dst, err)
		}
		opts.Mode = a.Mode
	}
	a, _, err := concat(ctx, c, dst, []InodeRange{{Inode: src}}, 0, opts)
	return Attr{a}, retry.Wrap("client.CloneFile", dst, err)
}

// Concat makes dst from ranges of other files, one after the other. Their number is not
// limited, and no byte moves. dst is visible whole or not at all. It fails with Stale if a
// source changes meanwhile and the caller named its generation, or one log entry cannot take
// all of that range.
//
// Up to 10,000 ranges run as a job of the service, which continues even if this client stops.
// After Timeout or Canceled dst may still appear.
func (c *Client) Concat(ctx context.Context, dst string, srcs []InodeRange, opts CreateOptions) (Attr, error) {
	a, _, err := concat(ctx, c, dst, srcs, 0, opts)
	return Attr{a}, retry.Wrap("client.Concat", dst, err)
}

// ConcatParts is Concat that also removes the directory parts and all below it, in the same log
// entry in which dst appears. It fails with NotFound if parts was removed before. consumed is
// false if the ranges are too many for one job; the caller then removes parts.
func (c *Client) ConcatParts(ctx context.Context, dst string, srcs []InodeRange, parts moraine.InodeID, opts CreateOptions) (a Attr, consumed bool, err error) {
	w, consumed, err := concat(ctx, c, dst, srcs, parts, opts)
	return Attr{w}, consumed, retry.Wrap("client.ConcatParts", dst, err)
}

// concat fills an unlinked file with the ranges, and links it.
func concat(ctx context.Context, c *Client, dst string, srcs []InodeRange, consume moraine.InodeID, opts CreateOptions) (a *wire.Attr, consumed bool, err error) {
	todo, err := cloneRanges(srcs)
	if err != nil {
		return nil, false, err
	}
	link, err := c.paths.linkTarget(ctx, dst, opts)
	if err != nil {
		return nil, false, err
	}
	if err := c.contents.flushOpen(ctx, srcs); err != nil {
		return nil, false, err
	}
	f, err := c.create(ctx, dst, moraine.InodeID(link.Parent), link, opts)
	if err != nil {
		return nil, false, err
	}
	a, consumed, err = f.assemble(ctx, todo, consume)
	if err != nil {
		f.fail("client.Clone", err)
		f.Abort()
		f.forget(ctx)
		return nil, false, err
	}
	f.close()
	return a, consumed, nil
}

// cloneRanges converts ranges to their wire form.
func cloneRanges(srcs []InodeRange) ([]*wire.CloneRange, error) {
	out := make([]*wire.CloneRange, len(srcs))
	for i, r := range srcs {
		if r.Offset < 0 || r.Length < 0 {
			return nil, &moraine.Error{Kind: moraine.InvalidArgument}
		}
		out[i] = &wire.CloneRange{Inode: uint64(r.Inode), Generation: uint64(r.Generation),
			Offset: uint64(r.Offset), Length: uint64(r.Length)}
	}
	return out, nil
}

// flushOpen commits the bytes that this client wrote to the files and has not committed yet.
func (s *contents) flushOpen(ctx context.Context, srcs []InodeRange) error {
	seen := map[moraine.InodeID]bool{}
	for _, r := range srcs {
		if seen[r.Inode] {
			continue
		}
		seen[r.Inode] = true
		ct := s.hold(r.Inode)
		if ct == nil {
			continue
		}
		err := ct.flush(ctx)
		s.letGo(ct)
		if err != nil {
			return err
		}
	}
	return nil
}

// maxCloneRanges bounds the ranges of one request. The service bounds how many extents they
// touch, and answers TooLarge.
const maxCloneRanges = 256

// clone appends the ranges to the file in several requests. The last one also gives the file
// its name.
func (f *File) clone(ctx context.Context, todo []*wire.CloneRange) (*wire.Attr, error) {
	generation, n := f.attr.Generation, maxCloneRanges
	for {
		n = max(1, min(n, len(todo)))
		attr, err := f.cloneStep(ctx, generation, todo[:min(n, len(todo))], len(todo) <= n)
		switch {
		case retry.IsKind(err, moraine.TooLarge) && n > 1:
			n /= 2
			continue
		case retry.IsKind(err, moraine.TooLarge) && len(todo) > 0:
			if todo, err = f.halve(ctx, todo, err); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		case len(todo) <= n:
			return attr, nil
		}
		todo, generation = todo[n:], attr.Generation
		n *= 2
		n = min(n, maxCloneRanges)
	}
}

// cloneStep appends ranges to the file, in one log entry. The last one also gives the file its
// name.
func (f *File) cloneStep(ctx context.Context, generation uint64, ranges []*wire.CloneRange, last bool) (*wire.Attr, error) {
	op := &wire.Clone{Inode: f.attr.Inode, ExpectGeneration: generation, Mode: wire.CommitMode_COMMIT_MODE_APPEND,
		Ranges: ranges, Final: last}
	if last {
		op.Link = f.link
	}
	f.log.mu.Lock()
	f.log.committed, f.log.final = true, last // so that Abort releases the space
	f.log.mu.Unlock()
	resp, err := f.c.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: op}}, f.session)
	if err != nil {
		return nil, err
	}
	if resp.GetCommit().GetAttr() == nil {
		return nil, retry.BadReply("clone")
	}
	return resp.GetCommit().Attr, nil
}

// halve replaces the first range, which touches more than one log entry may, by its two halves.
// The source must not change between the halves, so both name its current generation.
func (f *File) halve(ctx context.Context, todo []*wire.CloneRange, cause error) ([]*wire.CloneRange, error) {
	r := todo[0]
	a, err := f.c.Inodes().stat(ctx, moraine.InodeID(r.Inode))
	if err != nil {
		return nil, err
	}
	if r.Generation == 0 {
		r.Generation = a.Generation
	}
	if r.Length == 0 && a.Size > r.Offset {
		r.Length = a.Size - r.Offset
	}
	half := r.Length / 2 / moraine.BlockSize * moraine.BlockSize
	if half == 0 {
		return nil, cause
	}
	first := &wire.CloneRange{Inode: r.Inode, Generation: r.Generation, Offset: r.Offset, Length: half}
	second := &wire.CloneRange{Inode: r.Inode, Generation: r.Generation, Offset: r.Offset + half, Length: r.Length - half}
	return append([]*wire.CloneRange{first, second}, todo[1:]...), nil
}
