package ckpt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"golang.org/x/sys/unix"
)

const (
	// redial is the pause before a rank connects again to an agent that has gone.
	redial = time.Second
	// keptMappings bounds the slots of the agent that stay mapped: a slot comes back at a later
	// save, and is then mapped already.
	keptMappings = 4
)

// agentLink is a rank's connection to the agent of its node. All methods may be called
// concurrently.
type agentLink struct {
	socket string
	open   agentproto.Open
	// attempt is that of the first opening. A later one must be the same.
	attempt uint32

	mu   sync.Mutex
	conn *agentproto.Conn // nil: to be dialed
	// mapped are the mapped slots, the latest used last.
	mapped []mapping
}

type mapping struct {
	slot string // empty: forgotten
	mem  []byte
}

// dialAgent connects and opens the run.
func dialAgent(ctx context.Context, socket string, open agentproto.Open) (*agentLink, *agentproto.OpenReply, error) {
	l := &agentLink{socket: socket, open: open}
	l.mu.Lock()
	defer l.mu.Unlock()
	reply, err := l.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	l.attempt = reply.Attempt
	return l, reply, nil
}

// connect dials and opens the run; the caller holds the mutex.
func (l *agentLink) connect(ctx context.Context) (*agentproto.OpenReply, error) {
	conn, err := agentproto.Dial(ctx, l.socket)
	if err != nil {
		return nil, err
	}
	reply, _, err := conn.Exchange(ctx, &agentproto.Request{Open: &l.open})
	if err != nil {
		_ = conn.Close() // the request is what failed
		return nil, err
	}
	if l.attempt != 0 && reply.Open.Attempt != l.attempt {
		_ = conn.Close()
		return nil, &moraine.Error{Op: "ckpt.Begin", Ref: l.open.Run, Kind: moraine.Fenced,
			Err: fmt.Errorf("attempt %d has taken over from attempt %d", reply.Open.Attempt, l.attempt)}
	}
	l.conn = conn
	return reply.Open, nil
}

// request makes one request on the link's connection.
func (l *agentLink) request(ctx context.Context, req *agentproto.Request) (*agentproto.Reply, []*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requestLocked(ctx, req)
}

func (l *agentLink) requestLocked(ctx context.Context, req *agentproto.Request) (*agentproto.Reply, []*os.File, error) {
	if l.conn == nil {
		if _, err := l.connect(ctx); err != nil {
			return nil, nil, err
		}
	}
	reply, files, err := l.conn.Exchange(ctx, req)
	if agentproto.Broken(err) {
		l.disconnect()
	}
	return reply, files, err
}

// disconnect ends the connection, and what is mapped: the next agent does not know these slots, and needs their
// pages. The caller holds the mutex.
func (l *agentLink) disconnect() {
	_ = l.conn.Close() // nothing more comes by it
	l.conn = nil
	for i := range l.mapped {
		l.mapped[i].forget()
	}
}

// forget replaces the slot by memory of this process, which has no pages yet: a copy into the part that the
// connection had may be under way. The part fails, and later mappings push the memory out.
func (m *mapping) forget() {
	if m.slot == "" {
		return
	}
	m.slot = ""
	// Without memory for that, the slot stays mapped until it is pushed out.
	_, _ = unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(m.mem)), uintptr(len(m.mem)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_FIXED|unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
}

// begin returns the memory of a slot for a part, and the earlier saves that have failed. An agent
// that was restarted since the last request is found again.
func (l *agentLink) begin(ctx context.Context, req agentproto.Begin) ([]byte, []agentproto.Failure, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hadConn := l.conn != nil
	reply, files, err := l.requestLocked(ctx, &agentproto.Request{Begin: &req})
	if hadConn && agentproto.Broken(err) && ctx.Err() == nil {
		reply, files, err = l.requestLocked(ctx, &agentproto.Request{Begin: &req})
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		for _, f := range files {
			_ = f.Close() // the mapping keeps it
		}
	}()
	if len(files) != 1 {
		l.disconnect()
		return nil, nil, &moraine.Error{Op: "ckpt.Begin", Kind: moraine.Internal, Err: fmt.Errorf("the agent sent %d descriptors, not 1", len(files))}
	}
	mem, err := l.mapSlot(reply.Begin, files[0])
	if err != nil {
		l.disconnect() // the step is begun there: the agent would refuse the next one
	}
	return mem, reply.Begin.Failed, err
}

// mapSlot maps a slot, or finds that it is mapped. The caller holds the mutex.
func (l *agentLink) mapSlot(b *agentproto.BeginReply, f *os.File) ([]byte, error) {
	if i := slices.IndexFunc(l.mapped, func(m mapping) bool { return m.slot == b.Slot }); i >= 0 {
		m := l.mapped[i]
		l.mapped = append(slices.Delete(l.mapped, i, i+1), m)
		return m.mem, nil
	}
	if len(l.mapped) == keptMappings {
		unmap(l.mapped[0].mem)
		l.mapped = slices.Delete(l.mapped, 0, 1)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(b.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &moraine.Error{Op: "map a slot of the agent", Kind: moraine.NoSpace, Err: err}
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE) // page tables before the copy, not during it
	l.mapped = append(l.mapped, mapping{b.Slot, mem})
	return mem, nil
}

func unmap(mem []byte) {
	if err := unix.Munmap(mem); err != nil {
		panic(fmt.Sprintf("ckpt: unmap a slot of %d bytes: %v", len(mem), err))
	}
}

// close ends the connection and unmaps the slots, which nobody may use afterwards.
func (l *agentLink) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close() // the agent goes on with what is sealed
		l.conn = nil
	}
	for _, m := range l.mapped {
		unmap(m.mem)
	}
	l.mapped = nil
}

// waitPart waits until the agent has written a sealed part to the cluster, on a connection of its
// own. It survives restarts of the agent. A part that the agent no longer knows was written:
// the step says how it ended.
func (l *agentLink) waitPart(ctx context.Context, step uint64) error {
	req := &agentproto.Request{Wait: &agentproto.Wait{Run: l.open.Run, Rank: l.open.Rank, Attempt: l.attempt, Step: step, Level: agentproto.Written}}
	for {
		_, err := agentproto.Ask(ctx, l.socket, req)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, moraine.NotFound):
			return nil
		case !agentproto.Broken(err):
			return err
		}
		if wait(ctx, after(redial)) != nil {
			return ctx.Err()
		}
	}
}

// sealPatience bounds how long Seal waits for an agent that has gone before it answered.
const sealPatience = 10 * time.Second

// sealed finds out from the next agent whether a Seal without an answer took effect. Otherwise it
// returns cause.
func (l *agentLink) sealed(ctx context.Context, step uint64, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, sealPatience)
	defer cancel()
	req := &agentproto.Request{Wait: &agentproto.Wait{Run: l.open.Run, Rank: l.open.Rank, Attempt: l.attempt, Step: step, Level: agentproto.Local}}
	for {
		_, err := agentproto.Ask(ctx, l.socket, req)
		if err == nil || ctx.Err() == nil && !agentproto.Broken(err) && !errors.Is(err, moraine.NotFound) {
			return err
		}
		if errors.Is(err, moraine.NotFound) || wait(ctx, after(redial)) != nil {
			return cause
		}
	}
}

func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}
