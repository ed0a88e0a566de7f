package client

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Quotas bound and report the bytes and inodes below directories.
type Quotas struct{ c *Client }

// Quotas returns the quotas of the cluster.
func (c *Client) Quotas() Quotas { return Quotas{c} }

// Usage is what is below a directory, and its quota.
type Usage struct {
	Inode moraine.InodeID
	// Path is the directory's path in the answers of List.
	Path string
	// Bytes is the sum of the sizes of all files.
	Bytes, Inodes uint64
	// QuotaBytes and QuotaInodes are the bounds; 0 for none.
	QuotaBytes, QuotaInodes uint64
}

func usageOf(w *wire.Usage) Usage {
	return Usage{Inode: moraine.InodeID(w.GetInode()), Path: w.GetPath(), Bytes: w.GetBytes(), Inodes: w.GetInodes(),
		QuotaBytes: w.GetQuotaBytes(), QuotaInodes: w.GetQuotaInodes()}
}

// Space is the usage of a directory, and what the quotas on it and above it leave.
type Space struct {
	Usage Usage
	// Limited: a quota applies here, and RoomBytes and RoomInodes are what all quotas leave.
	Limited               bool
	RoomBytes, RoomInodes uint64
	// Quota is the usage of the nearest directory with a quota. It is nil if there is none, or if
	// the session may not see that directory.
	Quota *Usage
}

// Usage returns the bytes and inodes below a directory, or below the directory of a file, and
// what the quotas above leave. It costs one request, whatever the size. Unavailable: the
// cluster does not count, or not yet. NotFound: there is no such inode. PermissionDenied: the
// session may not see it. May be called concurrently.
func (q Quotas) Usage(ctx context.Context, inode moraine.InodeID) (Space, error) {
	resp, err := q.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: uint64(inode)}}})
	if err == nil && resp.GetUsage().GetUsage() == nil {
		err = retry.BadReply("usage")
	}
	if err != nil {
		return Space{}, retry.Wrap("client.Usage", inode.String(), err)
	}
	r := resp.GetUsage()
	s := Space{Usage: usageOf(r.Usage), Limited: r.Limited, RoomBytes: r.RoomBytes, RoomInodes: r.RoomInodes}
	if r.Quota != nil {
		s.Quota = new(usageOf(r.Quota))
	}
	return s, nil
}

// Set bounds the bytes and inodes below a directory and replaces its earlier bounds; 0 is no
// bound. Existing files may stay. PermissionDenied: the caller is no administrator. NotFound,
// NotDirectory: dir is no directory. TooLarge: a bound past 2^62, or too many directories have
// quotas. Busy: the first count is running. Unavailable: the cluster does not count. May be
// called concurrently: the call that the service applies last wins.
func (q Quotas) Set(ctx context.Context, dir moraine.InodeID, bytes, inodes uint64) error {
	_, err := q.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{
		Inode: uint64(dir), Bytes: bytes, Inodes: inodes}}})
	return retry.Wrap("client.SetQuota", dir.String(), err)
}

// quotasPage is how many quotas one request returns.
const quotasPage = 500

// List yields the directories with quotas that the session may see, in order of number, with
// their paths and usage. An error is the last thing that it yields.
func (q Quotas) List(ctx context.Context) iter.Seq2[Usage, error] {
	return func(yield func(Usage, error) bool) {
		for after, more := uint64(0), true; more; {
			resp, err := q.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListQuotas{ListQuotas: &wire.ListQuotas{After: after, Limit: quotasPage}}})
			if err == nil && resp.GetQuotas() == nil {
				err = retry.BadReply("list quotas")
			}
			if err != nil {
				yield(Usage{}, retry.Wrap("client.Quotas", "", err))
				return
			}
			for _, q := range resp.GetQuotas().Quotas {
				if !yield(usageOf(q), nil) {
					return
				}
			}
			after, more = resp.GetQuotas().Last, resp.GetQuotas().More
		}
	}
}

// Recount starts a job that counts again what is below every directory, and corrects wrong
// counts. If one is running it returns that job. It does not wait; Jobs.Wait does.
// PermissionDenied: the caller is no administrator. Unavailable: the cluster does not count.
// May be called concurrently.
func (q Quotas) Recount(ctx context.Context) (Job, error) {
	resp, err := q.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Recount{Recount: &wire.Recount{}}})
	if err == nil && len(resp.GetJobs().GetJobs()) != 1 {
		err = retry.BadReply("recount")
	}
	if err != nil {
		return Job{}, retry.Wrap("client.Recount", "", err)
	}
	return jobOf(resp.GetJobs().Jobs[0]), nil
}

// roomAge is how long the client uses an answer about the room under quotas.
const roomAge = time.Second

// room keeps a writer from sending bytes that a quota will not let it commit. Only the service
// decides, at the commit. This check avoids sending bytes in vain and reports the error to the
// writer at once. While the cluster has no quota it sends no request. Safe for concurrent use.
type room struct {
	mu    sync.Mutex
	asked time.Time
	base  uint64 // the file's size when the answer arrived
	left  uint64
}

// admit fails with QuotaExceeded if a file may not grow by growth bytes. It uses an answer of
// the service that is at most a second old. at is the file or its directory; base is the size
// that the service knows. Bytes already granted to this file since the answer count as used.
func (r *room) admit(ctx context.Context, c *Client, at moraine.InodeID, base uint64, growth int64) error {
	if growth <= 0 || at == 0 || !c.meta.Quotas.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := c.clock.Now()
	if !r.asked.IsZero() && now.Sub(r.asked) < roomAge && base == r.base && uint64(growth) <= r.left {
		return nil
	}
	u, err := c.Quotas().Usage(ctx, at)
	if err != nil {
		return nil // the commit will report it
	}
	if r.asked, r.base, r.left = now, base, u.RoomBytes; !u.Limited {
		r.left = 1 << 63
	}
	if uint64(growth) <= r.left {
		return nil
	}
	return overQuota(at, growth, r.left, u.Quota)
}

// overQuota returns the error for a growth at an inode that does not fit. q is the nearest
// quota above it that the session may see, or nil. The error names q only if q is what leaves
// so little room.
func overQuota(at moraine.InodeID, growth int64, left uint64, q *Usage) error {
	if q == nil || q.QuotaBytes == 0 || max(q.QuotaBytes, q.Bytes)-q.Bytes != left {
		return &moraine.Error{Op: "quota", Ref: at.String(), Kind: moraine.QuotaExceeded,
			Err: fmt.Errorf("%d more bytes do not fit: the quotas of the directories above leave %d", growth, left)}
	}
	return &moraine.Error{Op: "quota", Ref: q.Path, Kind: moraine.QuotaExceeded,
		Err: fmt.Errorf("%d more bytes do not fit below %s: it has %d, and its quota is %d: remove files there, or have an administrator raise it",
			growth, q.Path, q.Bytes, q.QuotaBytes)}
}
