package demo

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/llama"
)

const (
	// heldHosts are the chunkservers of the second cluster, and heldCapacity is the size of each
	// device.
	heldHosts    = 6
	heldCapacity = "256MiB"
	// lostHosts is one more than m of the scheme 4+2.
	lostHosts = 3
	heldRun   = "/runs/llama-3-8b-memory"
	heldBytes = 32 << 20
	heldRanks = 2
	// memoryPatience is how long a save at level memory may take while the devices are held, and
	// memorySaves how many may take longer.
	memoryPatience = 5 * time.Second
	memorySaves    = 5
	// lostPatience limits the wait for the leader, which finds the loss.
	lostPatience = time.Minute
)

// stepLostInMemory is step 11: more than m hosts are killed while a step is only in their memory.
func (d *demo) stepLostInMemory(ctx context.Context) (err error) {
	d.cfg.Say("\n11. A step is only in the memory of %d chunkservers of a second cluster, and %d of them are killed.", heldHosts, lostHosts)
	h, err := d.startHeld(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	j := job{cluster: h.Cluster, run: heldRun, launch: "launch-1", world: heldRanks, bytes: heldBytes}
	step, digest, err := d.saveInMemory(ctx, h, j)
	if err != nil {
		return err
	}
	_, newest, err := h.links(ctx, step, "latest", "latest-memory")
	if err != nil {
		return err
	}
	nodes, err := h.kill(lostHosts)
	if err != nil {
		return err
	}
	d.cfg.Say("  SIGKILL to %s", names(nodes))
	for _, n := range nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	start := time.Now()
	lost, err := h.awaitLost(ctx, step)
	if err != nil {
		return err
	}
	d.cfg.Say("  step %d is %s, known %v after their restart: %s", step, lost.State, time.Since(start).Round(time.Millisecond), lost.Reason)
	links, back, err := h.links(ctx, step-1, "latest", "latest-memory", "latest-nvme")
	if err != nil {
		return err
	}
	j.launch = "restore"
	r, err := d.restoreBy(ctx, j, step-1, moraine.Memory)
	if err != nil {
		return err
	}
	d.cfg.Say("  %s\n  step %d saved    %s\n         restored %s", links, step-1, digest, r.digest)
	d.claim("11", "a step only in memory is lost beyond m hosts; latest and a restore find the one before",
		newest && lost.State == ckpt.StepLost && back && r.digest == digest,
		"%s killed, step %d %s, step %d restored, digest %s", names(nodes), step, lost.State, step-1, r.digest)
	return nil
}

func names(nodes []*devcluster.Node) string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return strings.Join(out, ", ")
}

// saveInMemory saves a step at level nvme, and then one at level memory while the devices are held.
// It returns the number of the second one, which is on no device, and the digest of the one before.
func (d *demo) saveInMemory(ctx context.Context, h *heldCluster, j job) (step uint64, digest string, err error) {
	t, err := d.startTeam(ctx, j)
	if err != nil {
		return 0, "", err
	}
	defer t.kill()
	if digest, err = saveAt(ctx, t, 1, moraine.NVMe, func() {}); err != nil {
		return 0, "", err
	}
	// Some saves need the devices: a cluster enables level memory when the first file is at it, and
	// a chunkserver that does not know that yet writes before it answers.
	for step = 2; step < 2+memorySaves; step++ {
		h.hold()
		var late atomic.Bool
		next, err := saveAt(ctx, t, step, moraine.Memory, func() {
			late.Store(true)
			h.release()
		})
		if err != nil {
			return 0, "", err
		}
		info, err := h.step(ctx, step)
		if err != nil {
			return 0, "", err
		}
		if !late.Load() && info.Level == moraine.Memory {
			d.cfg.Say("  step %d is committed at level %s; no device has accepted a chunk of it", step, info.Level)
			return step, digest, nil
		}
		h.release()
		if err := h.await(ctx, step, func(s ckpt.StepInfo) bool { return s.Level >= moraine.NVMe }); err != nil {
			return 0, "", err
		}
		digest = next
	}
	return 0, "", fmt.Errorf("%d saves at level memory waited for the devices", memorySaves)
}

// saveAt makes all ranks save a step, and returns its digest. It calls late, once, if the save is
// not at its level within memoryPatience.
func saveAt(ctx context.Context, t *team, step uint64, level moraine.Level, late func()) (string, error) {
	if err := t.order(order{Do: "save", Step: step, Seed: step, Level: level}); err != nil {
		return "", err
	}
	timer := time.AfterFunc(memoryPatience, late)
	events, err := t.collect(ctx, heldRanks, "committed", nil)
	timer.Stop()
	if err != nil {
		return "", err
	}
	var sums []llama.Sum
	for _, e := range events {
		sums = append(sums, e.Sums...)
	}
	return llama.Digest(modelOf(heldBytes), sums)
}

// step returns the record of a step of the run's first attempt.
func (h *heldCluster) step(ctx context.Context, step uint64) (ckpt.StepInfo, error) {
	run, err := h.client.Stat(ctx, heldRun)
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	steps, err := ckpt.ListSteps(ctx, h.client, run.Inode(), true)
	for _, s := range steps {
		if s.Step == step {
			return s, err
		}
	}
	return ckpt.StepInfo{}, errors.Join(err, fmt.Errorf("%s has no step %d", heldRun, step))
}

// await waits until a step is as wanted.
func (h *heldCluster) await(ctx context.Context, step uint64, wanted func(ckpt.StepInfo) bool) error {
	ctx, cancel := context.WithTimeout(ctx, lostPatience)
	defer cancel()
	return until(ctx, fmt.Sprintf("step %d of %s", step, heldRun), 5*poll, func(ctx context.Context) (bool, error) {
		s, err := h.step(ctx, step)
		return err == nil && wanted(s), err
	})
}

// awaitLost waits until the leader has found that a step is lost, or is at level nvme: then all of it
// was found. It returns the step's record.
func (h *heldCluster) awaitLost(ctx context.Context, step uint64) (ckpt.StepInfo, error) {
	err := h.await(ctx, step, func(s ckpt.StepInfo) bool { return s.State == ckpt.StepLost || s.Level >= moraine.NVMe })
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	return h.step(ctx, step)
}

// links describes links of the run, and reports whether all of them name a step.
func (h *heldCluster) links(ctx context.Context, step uint64, links ...string) (says string, all bool, err error) {
	all = true
	var list []string
	for _, name := range links {
		link, err := h.client.Lstat(ctx, path.Join(heldRun, name))
		if err != nil {
			return "", false, err
		}
		list = append(list, fmt.Sprintf("%s -> %s", name, link.Target()))
		all = all && path.Base(link.Target()) == fmt.Sprintf("step-%d", step)
	}
	return strings.Join(list, ", "), all, nil
}
