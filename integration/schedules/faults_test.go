package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/netns"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/slowdisk"
	"github.com/morainefs/moraine/transport/wire"
)

// injector injects faults. A fault counts as fired when its effect was seen, not
// when it was requested.
type injector struct {
	net     *netns.Net
	cluster *devcluster.Cluster
	crew    map[string]*member
	proxies map[string]*proxy
	slow    *slowdisk.Disk
	admin   *client.Client
	seed    uint64

	mu    sync.Mutex
	busy  map[string]bool // the current targets of faults
	fired []happened
	notes []string // of faults without an effect, for people
}

// happened is a fault that fired.
type happened struct {
	fault
	from, to time.Time
}

// act is a fault in progress: its effect, and how to undo it.
type act struct {
	// seen says, after the fault has lasted, why it does not count; nil: it does.
	seen func() error
	undo func() error
}

func yes() error { return nil }

// play starts a fault, lets it last, and undoes it. Errors are those of the undo: a
// fault without an effect is recorded.
func (in *injector) play(ctx context.Context, f fault) error {
	if err := in.take(ctx, &f); err != nil {
		in.note(f, err)
		return nil
	}
	defer in.free(f)
	from := time.Now()
	a, err := in.begin(ctx, f)
	if err == nil {
		select {
		case <-time.After(f.For):
		case <-ctx.Done():
		}
		err = a.seen()
	}
	to := time.Now()
	if err != nil {
		in.note(f, err)
	} else {
		in.mu.Lock()
		in.fired = append(in.fired, happened{f, from, to})
		in.mu.Unlock()
	}
	if a.undo == nil {
		return nil
	}
	if err := a.undo(); err != nil {
		return fmt.Errorf("undo %s of %s: %w", f.Kind, f.Target, err)
	}
	return nil
}

func (in *injector) note(f fault, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.notes = append(in.notes, fmt.Sprintf("%v: %v", f, err))
}

// take chooses the leader, if it is the target, and keeps other faults from the
// target.
func (in *injector) take(ctx context.Context, f *fault) error {
	if f.Target == leader {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		resp, err := rawclient.Of(in.admin).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetLeader{GetLeader: &wire.GetLeader{}}})
		if err != nil {
			return err
		}
		if f.Target = resp.GetLeader().GetId(); !slices.Contains(metadataServers, f.Target) {
			return fmt.Errorf("the leader is %q", f.Target)
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.busy[f.Target] {
		return errors.New("another fault acts on it")
	}
	in.busy[f.Target] = true
	return nil
}

func (in *injector) free(f fault) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.busy, f.Target)
}

// begin starts a fault. If the act has an undo, it must be called on error too.
func (in *injector) begin(ctx context.Context, f fault) (act, error) {
	switch f.Kind {
	case kills:
		return in.kill(f.Target)
	case stops:
		return in.stop(f.Target)
	case partitions:
		return in.partition(f)
	case slowDisks:
		return in.slowDown()
	case fullDisks:
		undo, err := fillUp(in.cluster.Node(filled).Dir)
		return act{yes, undo}, err
	case bitFlips:
		return in.rot(f)
	case lostReplies:
		return in.lose(f.Target)
	}
	return act{}, fmt.Errorf("no such fault: %q", f.Kind)
}

// kill kills a process, which is restarted at the end.
func (in *injector) kill(target string) (act, error) {
	if m := in.crew[target]; m != nil {
		if m.pid() == 0 {
			return act{}, errors.New("it does not run")
		}
		return act{yes, func() error { return m.start() }}, m.kill()
	}
	n := in.cluster.Node(target)
	if !n.Running() {
		return act{undo: n.Start}, fmt.Errorf("%s ended by itself: %s", target, n.Why())
	}
	return act{yes, n.Start}, n.Kill()
}

// stop stops a process, which continues at the end. It counts if the process was
// stopped all the time.
func (in *injector) stop(target string) (act, error) {
	pid := 0
	if m := in.crew[target]; m != nil {
		pid = m.pid()
	} else {
		pid = in.cluster.Node(target).Pid()
	}
	if pid == 0 {
		return act{}, errors.New("it does not run")
	}
	seen := func() error {
		if !stopped(pid) {
			return errors.New("it is not stopped")
		}
		return nil
	}
	return act{seen, func() error { return syscall.Kill(pid, syscall.SIGCONT) }}, syscall.Kill(pid, syscall.SIGSTOP)
}

// stopped reports whether the kernel shows a process as stopped.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(rest, "T")
}

// partition disconnects a host. It counts if another host was reachable before, and
// not while it lasted.
func (in *injector) partition(f fault) (act, error) {
	peers := slices.DeleteFunc(slices.Clone(metadataServers), func(m string) bool { return m == f.Target })
	if f.Other != "" && f.Other != mute {
		peers = []string{f.Other}
	}
	at := slices.IndexFunc(peers, func(p string) bool { return in.reaches(f.Target, p) })
	if at < 0 {
		return act{}, fmt.Errorf("it reaches none of %v as it is", peers)
	}
	seen := func() error {
		if in.reaches(f.Target, peers[at]) {
			return fmt.Errorf("it reaches %s still", peers[at])
		}
		return nil
	}
	switch f.Other {
	case "":
		return act{seen, func() error { return in.net.Up(f.Target) }}, in.net.Down(f.Target)
	case mute:
		return act{seen, func() error { return in.net.Unmute(f.Target) }}, in.net.Mute(f.Target)
	}
	return act{seen, func() error { return in.net.Join(f.Target, f.Other) }}, in.net.Part(f.Target, f.Other)
}

// reaches reports whether a host can connect to a server.
func (in *injector) reaches(from, to string) bool {
	return in.net.Within(from, func() error {
		c, err := net.DialTimeout("tcp", in.cluster.Node(to).Address, 500*time.Millisecond)
		if err != nil {
			return err
		}
		return c.Close()
	}) == nil
}

// slowCall is how long each call to a slow disk waits.
const slowCall = 80 * time.Millisecond

// slowDown makes a disk slow. It counts if calls waited.
func (in *injector) slowDown() (act, error) {
	before := in.slow.Waited()
	in.slow.Delay(slowCall)
	seen := func() error {
		if in.slow.Waited() == before {
			return errors.New("no call reached the disk")
		}
		return nil
	}
	return act{seen, func() error { in.slow.Delay(0); return nil }}, nil
}

// lose makes replies of a server get lost. It counts if one was lost.
func (in *injector) lose(target string) (act, error) {
	p := in.proxies[target]
	before := p.lost.Load()
	p.losing.Store(true)
	seen := func() error {
		if p.lost.Load() == before {
			return errors.New("it had no reply to lose")
		}
		return nil
	}
	return act{seen, func() error { p.losing.Store(false); return nil }}, nil
}

// counts are the faults that fired, by kind, and the pairs of them that overlapped.
func (in *injector) counts() (kinds map[kind]int, total, overlapping int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	kinds = map[kind]int{}
	for i, f := range in.fired {
		kinds[f.Kind]++
		for _, g := range in.fired[:i] {
			if g.from.Before(f.to) && f.from.Before(g.to) {
				overlapping++
			}
		}
	}
	return kinds, len(in.fired), overlapping
}
