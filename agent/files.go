package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

// source is the client for files, which all connections share. It is made when the first one needs
// it.
type source struct {
	mu  sync.Mutex
	c   *client.Client
	end func() error
}

// client returns the client. It fails if the cluster does not answer, and a later call tries again.
func (s *source) client(ctx context.Context, connect func(context.Context) (*client.Client, func() error, error)) (*client.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		return s.c, nil
	}
	c, end, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	s.c, s.end = c, end
	return c, nil
}

func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		_ = s.end() // what is committed is durable
		s.c = nil
	}
}

// files is what a connection does with files: one that it reads, a directory that it lists, and one
// that it writes.
type files struct {
	reader *client.Reader
	path   string // of the reader
	list   lister
	// slot has the bytes of the last FetchFile.
	slot *slot

	writer *client.File
	create fileproto.Create
	// out is the slot through which the file is written.
	out *slot
}

func (f *files) close(p *pool) {
	f.drop(p)
	f.closeReader()
	f.list.close()
	f.abort(p)
}

// drop gives back the memory of what was read.
func (f *files) drop(p *pool) {
	if f.slot != nil {
		p.discard(f.slot)
		f.slot = nil
	}
}

func (f *files) closeReader() {
	if f.reader != nil {
		_ = f.reader.Close() // only read
		f.reader = nil
	}
}

// abort ends a file that is not committed.
func (f *files) abort(p *pool) {
	if f.writer != nil {
		f.writer.Abort()
		f.writer = nil
	}
	if f.out != nil {
		f.out.empty() // the writer may keep it mapped, and nobody reads it
		p.discard(f.out)
		f.out = nil
	}
}

// aboutFiles reports whether serveFile has a request.
func aboutFiles(req *agentproto.Request) bool {
	return req.Stat != nil || req.List != nil || req.FetchFile != nil || req.Create != nil || req.Append != nil || req.Commit != nil ||
		req.Mkdir != nil || req.Remove != nil || req.Rename != nil || req.Clone != nil
}

// serveFile serves a request about files. file is the descriptor that goes with the reply.
func (c *conn) serveFile(ctx context.Context, req *agentproto.Request, reply *agentproto.Reply) (file *os.File, err error) {
	fc, err := c.a.source.client(c.a.work, c.a.deps.Connect)
	if err != nil {
		return nil, err
	}
	switch {
	case req.Stat != nil:
		reply.Stat, err = stat(ctx, fc, string(req.Stat.Path))
	case req.List != nil:
		reply.List, err = c.files.list.page(ctx, fc, req.List)
	case req.FetchFile != nil:
		reply.FetchFile, file, err = c.fetchFile(ctx, fc, req.FetchFile)
	case req.Create != nil:
		reply.Create, file, err = c.create(ctx, fc, req.Create)
	case req.Append != nil:
		reply.Append, err = c.append(req.Append)
	case req.Commit != nil:
		reply.Commit, err = c.commit(ctx, fc)
	case req.Mkdir != nil:
		reply.Mkdir, err = c.mkdir(ctx, fc, req.Mkdir)
	case req.Remove != nil:
		reply.Remove, err = remove(ctx, fc, req.Remove)
	case req.Rename != nil:
		reply.Rename, err = rename(ctx, fc, req.Rename)
	case req.Clone != nil:
		reply.Clone, err = c.clone(ctx, fc, req.Clone)
	}
	return file, err
}

func stat(ctx context.Context, fc *client.Client, name string) (*fileproto.Entry, error) {
	attr, err := fc.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	e := entryOf(path.Base(name), attr)
	return &e, nil
}

func entryOf(name string, attr client.Attr) fileproto.Entry {
	e := fileproto.Entry{Name: fileproto.Name(name), Type: fileproto.File, Bytes: attr.Size(), Modified: attr.ModTime().UnixNano(), Version: version(attr)}
	switch {
	case attr.IsDir():
		e.Type, e.Bytes = fileproto.Directory, 0
	case attr.IsSymlink():
		e.Type, e.Bytes = fileproto.Link, 0
	case attr.IsSpecial():
		e.Type = fileproto.Other
	}
	return e
}

// version names the content of a file. A file that replaces another has an inode of its own.
func version(attr client.Attr) string {
	return fmt.Sprintf("%x-%x", uint64(attr.Inode()), uint64(attr.Generation()))
}

// fetchFile reads a range into a slot. It waits for memory that saves use.
func (c *conn) fetchFile(ctx context.Context, fc *client.Client, req *fileproto.FetchFile) (*fileproto.FetchFileReply, *os.File, error) {
	if req.Offset < 0 || req.Bytes <= 0 {
		return nil, nil, c.invalid("a fetch of %d bytes at %d", req.Bytes, req.Offset)
	}
	f := &c.files
	if f.reader == nil || f.path != string(req.Path) {
		f.closeReader()
		r, err := fc.OpenFile(ctx, string(req.Path))
		if err != nil {
			return nil, nil, err
		}
		f.reader, f.path = r, string(req.Path)
	}
	if err := c.readSlot(ctx, req); err != nil {
		return nil, nil, err
	}
	n, err := f.reader.ReadAt(ctx, f.slot.mem[:req.Bytes], req.Offset)
	if err != nil && !errors.Is(err, io.EOF) {
		f.drop(c.a.pool)
		return nil, nil, err
	}
	file, err := os.Open(f.slot.file.Name()) // for reading alone
	if err != nil {
		f.drop(c.a.pool)
		return nil, nil, err
	}
	return &fileproto.FetchFileReply{Slot: f.slot.name, Bytes: int64(n), Size: f.reader.Size(), Version: version(f.reader.Attr())}, file, nil
}

// readSlot makes c.files.slot one that has room for the bytes of req.
func (c *conn) readSlot(ctx context.Context, req *fileproto.FetchFile) error {
	f := &c.files
	if req.Reuse && f.slot != nil && int64(len(f.slot.mem)) >= req.Bytes && f.slot.whole() == nil {
		return nil
	}
	f.drop(c.a.pool)
	s, err := c.takeSlot(ctx, "agent.FetchFile", req.Bytes)
	f.slot = s
	return err
}

// takeSlot returns a slot that no part has.
func (c *conn) takeSlot(ctx context.Context, op string, n int64) (*slot, error) {
	s, err := c.a.pool.take(ctx, want{op: op, uid: c.uid, bytes: n, wait: true, lent: c.lent(), patience: c.a.cfg.Patience}, func() (bool, bool) { return c.a.spare(nil, c.uid) })
	if err == nil {
		c.a.pool.lend(s)
	}
	return s, err
}

// create begins a file of the peer's user.
func (c *conn) create(ctx context.Context, fc *client.Client, req *fileproto.Create) (*fileproto.CreateReply, *os.File, error) {
	if req.Bytes <= 0 {
		return nil, nil, c.invalid("create with a slot of %d bytes", req.Bytes)
	}
	f := &c.files
	f.abort(c.a.pool)
	if req.Parents {
		if err := c.makeParents(ctx, fc, string(req.Path)); err != nil {
			return nil, nil, err
		}
	}
	s, err := c.takeSlot(ctx, "agent.Create", req.Bytes)
	if err != nil {
		return nil, nil, err
	}
	f.out = s
	// The file outlives this request.
	f.writer, err = fc.Create(c.a.work, string(req.Path), client.CreateOptions{Replace: !req.Exclusive, UID: c.uid, GID: c.gid})
	if err != nil {
		f.abort(c.a.pool)
		return nil, nil, err
	}
	f.create = *req
	return &fileproto.CreateReply{Slot: s.name, Bytes: int64(len(s.mem))}, s.file, nil
}

func (c *conn) append(req *fileproto.Append) (*fileproto.AppendReply, error) {
	f := &c.files
	switch {
	case f.writer == nil:
		return nil, c.invalid("append before create")
	case req.Bytes < 0 || req.Bytes > int64(len(f.out.mem)):
		return nil, c.invalid("append of %d bytes of a slot of %d", req.Bytes, len(f.out.mem))
	}
	if err := f.out.whole(); err != nil {
		return nil, err
	}
	if _, err := f.writer.Write(f.out.mem[:req.Bytes]); err != nil {
		f.abort(c.a.pool)
		return nil, err
	}
	return &fileproto.AppendReply{Bytes: f.writer.Size()}, nil
}

func (c *conn) commit(ctx context.Context, fc *client.Client) (*fileproto.Entry, error) {
	f := &c.files
	if f.writer == nil {
		return nil, c.invalid("commit before create")
	}
	if _, err := f.writer.Commit(ctx); err != nil {
		f.abort(c.a.pool)
		return nil, err
	}
	f.writer = nil
	f.abort(c.a.pool)
	return stat(ctx, fc, string(f.create.Path))
}
