package fuse_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// latestWorld is a run whose latest checkpoint is watched.
type latestWorld struct {
	removals atomic.Int64 // removals of steps that have begun
	t        *testing.T
	c        *incluster.Cluster
	m        *mounted
	cl       *incluster.Client // the watching client
	root     moraine.InodeID
}

// newest returns the path of the newest good checkpoint in the run's list, "" for
// none. It also returns the whole list, which shows steps that came and went.
func (w *latestWorld) newest(ctx context.Context) (newest, list string, err error) {
	steps, err := ckpt.ListSteps(ctx, w.cl.Client, w.root, true)
	for _, s := range steps {
		list += fmt.Sprintln(s.Attempt, s.Step, s.State, s.Dir)
		if s.State == ckpt.StepCommitted {
			newest = s.Path
		}
	}
	return newest, list, err
}

// watchGo compares the latest checkpoint by ReadDir and ResolveStep with the list,
// whenever the list was the same before and after.
func (w *latestWorld) watchGo(ctx context.Context) error {
	before, listBefore, err := w.newest(ctx)
	if err != nil {
		return err
	}
	looked, err := rawclient.Of(w.cl).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: uint64(w.root), Name: "latest"}}})
	if err != nil && moraine.KindOf(err) != moraine.NotFound {
		return err
	}
	resp, resolveErr := rawclient.Of(w.cl).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{Run: uint64(w.root), Level: uint32(moraine.Memory)}}})
	if resolveErr != nil && moraine.KindOf(resolveErr) != moraine.NotFound {
		return resolveErr
	}
	after, listAfter, err := w.newest(ctx)
	if err != nil || before != after || listBefore != listAfter {
		return err
	}
	resolved := resp.GetStep().GetStep().GetPath()
	link := looked.GetEntry().GetAttr().GetTarget()
	if link != before || resolved != before {
		return fmt.Errorf("the newest good checkpoint of the list is %q, latest names %q, ResolveStep %q", before, link, resolved)
	}
	return nil
}

// watchMount opens the index of the latest checkpoint. If that fails, latest must
// have moved in between.
func (w *latestWorld) watchMount() error {
	link := w.m.at("runs/r/latest")
	removals := w.removals.Load()
	before, linkErr := os.Readlink(link)
	f, err := os.Open(link + "/" + ckpt.IndexName)
	if err == nil {
		return f.Close()
	}
	after, afterErr := os.Readlink(link)
	if w.removals.Load() != removals {
		return nil // latest may have named a newer step for a moment, which was removed
	}
	if before == after && (linkErr == nil) == (afterErr == nil) && linkErr == nil {
		return fmt.Errorf("latest names %q: %w", before, err)
	}
	return nil
}

// watch watches through the mount and in Go until stop is called, which returns how
// often it checked.
func (w *latestWorld) watch(ctx context.Context) (stop func() (looks int)) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var mu sync.Mutex
	looks := 0
	look := func(name string, fn func() error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := fn(); err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
					w.t.Errorf("%s: %v", name, err)
					return
				}
				mu.Lock()
				looks++
				mu.Unlock()
			}
		})
	}
	look("mount", w.watchMount)
	look("Go", func() error { return w.watchGo(ctx) })
	return func() int {
		cancel()
		wg.Wait()
		return looks
	}
}

// hostsOf returns the hosts and devices of a file's first stripe.
func (w *latestWorld) hostsOf(path string) map[string]uint32 {
	w.t.Helper()
	attr, err := w.cl.Stat(w.t.Context(), path)
	require.NoError(w.t, err)
	resp, err := rawclient.Of(w.cl).Meta(w.t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(attr.Inode()), Limit: 1}}})
	require.NoError(w.t, err)
	topology, err := rawclient.Of(w.cl).Meta(w.t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(w.t, err)
	out := map[string]uint32{}
	for _, c := range resp.GetExtents().GetStripes()[0].GetChunks() {
		for _, h := range topology.GetCluster().GetTopology().GetHosts() {
			for _, d := range h.Devices {
				if d.Id == c.Device {
					out[h.Id] = d.Id
				}
			}
		}
	}
	return out
}

func (w *latestWorld) until(want string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		got, err := os.Readlink(w.m.at("runs/r/latest"))
		return err == nil && got == want
	}, time.Minute, 20*time.Millisecond, "latest does not become %s", want)
}

// TestLatestNeverDangles watches `latest` through a mount and in Go while
// checkpoints are committed, removed, lost with their chunkservers, and recovered.
// It always names the newest good checkpoint of the list, and one that exists.
func TestLatestNeverDangles(t *testing.T) {
	ctx := t.Context()
	c := startCluster(t, incluster.Options{Seed: 1, Chunkservers: 6})
	w := &latestWorld{t: t, c: c, m: mount(t, c, "c1")}
	saver, err := c.ClientWith(ctx, "trainer", client.Config{Scheme: moraine.Scheme{K: 1, M: 1}})
	require.NoError(t, err)
	defer saver.Close() //nolint:errcheck // what it saved is checked
	w.cl, err = c.Admin(ctx, "watcher")
	require.NoError(t, err)
	defer w.cl.Close() //nolint:errcheck // it reads
	require.NoError(t, saver.SaveSteps(ctx, "/runs/r", 1, 2))
	attr, err := w.cl.Stat(ctx, "/runs/r")
	require.NoError(t, err)
	w.root = attr.Inode()
	stop := w.watch(ctx)

	remove := func(step uint64) {
		w.removals.Add(1)
		require.NoError(t, func() error {
			_, err := rawclient.Of(saver).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{Key: &wire.StepKey{Run: uint64(attr.Inode()), Attempt: 1, Step: step}}}})
			return err
		}())
	}
	for step := uint64(3); step < 9; step++ {
		require.NoError(t, saver.SaveSteps(ctx, "/runs/r", step))
		w.until(fmt.Sprintf("attempt-1/step-%d", step))
		if step%2 == 0 {
			remove(step)
			w.until(fmt.Sprintf("attempt-1/step-%d", step-1))
		}
	}
	devices := w.hostsOf("/runs/r/attempt-1/step-7/rank-00000-of-00001.safetensors")
	set := func(to wire.DeviceState) {
		for _, d := range devices {
			_, err := rawclient.Of(w.cl).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: d, State: to}}})
			require.NoError(t, err)
		}
	}
	for host := range devices {
		c.Kill(host)
	}
	set(wire.DeviceState_DEVICE_STATE_OUT)
	require.Eventually(t, func() bool {
		got, err := os.Readlink(w.m.at("runs/r/latest"))
		return err == nil && got != "attempt-1/step-7"
	}, time.Minute, 20*time.Millisecond, "a lost checkpoint stays latest")
	for host := range devices {
		require.NoError(t, c.Restart(host))
	}
	set(wire.DeviceState_DEVICE_STATE_IN)
	w.until("attempt-1/step-7")
	t.Logf("%d looks", stop())
	verifies(t, saver, "/runs/r", 7)
}
