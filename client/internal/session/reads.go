package session

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Reads through the cache: answered from it if a lease covers the answer, and otherwise
// requested from the service and cached.

// Walk resolves a path, without a leading slash, from the root of the session up to its last
// component.
func (m *Conn) Walk(ctx context.Context, p string, follow bool) (*wire.WalkReply, error) {
	if w, err, known := m.cache.walk(m.Current().Root, p, follow); known {
		return w, err
	}
	return m.walkFrom(ctx, 0, p, follow)
}

// walkFrom lets the service resolve a path from a directory, and caches the leased part. from 0
// is the root.
func (m *Conn) walkFrom(ctx context.Context, from moraine.InodeID, path string, follow bool) (*wire.WalkReply, error) {
	t := m.cache.ask()
	resp, err := m.Do(ctx, &wire.MetaRequest{LeaseEpoch: t.epoch, Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{
		From: uint64(from), Path: path, Follow: follow, Steps: t.epoch != 0}}})
	if err != nil {
		return nil, err
	}
	w := resp.GetWalk()
	if w == nil || (w.Found && w.Attr == nil) {
		return nil, retry.BadReply("walk")
	}
	m.cache.fill(t, resp.Lease, func(f *filling) {
		for _, s := range w.Steps {
			f.entry(s.Parent, s.Name, s.Attr)
		}
		if w.Found {
			f.attr(w.Attr)
		}
	})
	return w, nil
}

// StatInode returns the attributes of an inode. They may be shared and must not be changed.
func (m *Conn) StatInode(ctx context.Context, inode moraine.InodeID) (*wire.Attr, error) {
	if a, known, err := m.Desk.Attr(ctx, uint64(inode)); known || err != nil {
		return a, err
	}
	if a := m.cache.attr(inode); a != nil {
		return a, nil
	}
	t := m.cache.ask()
	resp, err := m.Do(ctx, &wire.MetaRequest{LeaseEpoch: t.epoch,
		Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: uint64(inode)}}})
	a := resp.GetEntry().GetAttr()
	if err == nil && a == nil {
		err = retry.BadReply("stat")
	}
	if err != nil {
		return nil, err
	}
	m.cache.fill(t, resp.Lease, func(f *filling) { f.attr(a) })
	return a, nil
}

// LookupAt returns the attributes of an entry, or nil if it does not exist.
func (m *Conn) LookupAt(ctx context.Context, parent moraine.InodeID, name string) (*wire.Attr, error) {
	inode, a, known, err := m.Desk.Lookup(ctx, uint64(parent), name)
	switch {
	case err != nil || known && (a != nil || inode == 0):
		return a, err
	case known:
		if a, err := m.StatInode(ctx, moraine.InodeID(inode)); !retry.IsKind(err, moraine.NotFound) {
			return a, err
		}
	}
	if m.cache == nil || !isName(name) {
		resp, err := m.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{
			Parent: uint64(parent), Name: name}}})
		if err == nil && resp.GetEntry().GetAttr() == nil {
			err = retry.BadReply("lookup")
		}
		return resp.GetEntry().GetAttr(), err
	}
	a, known = m.cache.lookup(parent, name)
	if known {
		return a, nil
	}
	if inode := m.cache.hiddenAt(parent, name); inode != 0 {
		if a, known, err := m.Desk.Attr(ctx, inode); known || err != nil {
			return a, err
		}
	}
	w, err := m.walkFrom(ctx, parent, name, false) // a walk reports a missing name without an error
	if err != nil {
		return nil, err
	}
	m.lister.lookedUp(parent)
	return w.Attr, nil
}

// maxReadDirPage is the most entries that the service returns at once.
const maxReadDirPage = 1000

// ReadDirPage returns up to limit entries of a directory whose names come after the given one;
// 0: as many as the service returns at once. The reply is shared and must not be changed.
func (m *Conn) ReadDirPage(ctx context.Context, dir moraine.InodeID, after string, limit int) (*wire.ReadDirReply, error) {
	m.lister.await(ctx, dir)
	r, err := page(ctx, m, dir, after, limit)
	if err == nil && !r.More && m.lister != nil {
		m.lister.listed(dir)
	}
	return r, err
}

// page is ReadDirPage for listings that no program waits for.
func page(ctx context.Context, m *Conn, dir moraine.InodeID, after string, limit int) (*wire.ReadDirReply, error) {
	if limit <= 0 || limit > maxReadDirPage {
		limit = maxReadDirPage
	}
	if r, known, err := m.Desk.Page(ctx, uint64(dir), after, limit); known || err != nil {
		return r, err
	}
	if r := m.cache.page(dir, after, limit); r != nil {
		return r, nil
	}
	return requestPage(ctx, m, dir, after, limit)
}

// requestPage requests a page, and caches it.
func requestPage(ctx context.Context, m *Conn, dir moraine.InodeID, after string, limit int) (*wire.ReadDirReply, error) {
	t := m.cache.ask()
	resp, err := m.Do(ctx, &wire.MetaRequest{LeaseEpoch: t.epoch, Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{
		Inode: uint64(dir), After: after, Limit: uint32(limit)}}})
	if err == nil && resp.GetReadDir() == nil {
		err = retry.BadReply("read directory")
	}
	if err != nil {
		return nil, err
	}
	m.cache.fill(t, resp.Lease, func(f *filling) { f.page(uint64(dir), after, resp.GetReadDir()) })
	return resp.GetReadDir(), nil
}

// HasNoXattrs reports whether an inode is known to have no extended attributes.
func (m *Conn) HasNoXattrs(inode moraine.InodeID) bool {
	return m.Desk.HasNoXattrs(uint64(inode)) || m.cache.hasNoXattrs(inode)
}

// CacheItems is how many names, attributes and leases are cached now.
func (m *Conn) CacheItems() int {
	if m.cache == nil {
		return 0
	}
	m.cache.mu.Lock()
	defer m.cache.mu.Unlock()
	return m.cache.items
}
