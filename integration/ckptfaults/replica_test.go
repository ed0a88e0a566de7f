package ckptfaults_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	dto "github.com/prometheus/client_model/go"

	"github.com/morainefs/moraine/client/ckpt"
)

// A replica is a tensor that every rank of a step has whole, with the same bytes. It is as small as a group
// of slices can be about which ranks of several nodes agree (agent/group.go).
const (
	replicaName  = "replica"
	replicaBytes = 1 << 20
)

// noise is the same in all replicas.
var noise = sync.OnceValue(func() []byte {
	p := make([]byte, 0, replicaBytes)
	for n := uint64(0); len(p) < replicaBytes; n++ {
		p = append(p, stepKey{step: n}.slice(0)...)
	}
	return p[:replicaBytes]
})

// stampEvery is the distance of the stamps of a replica in bytes: each block of a file has one.
const stampEvery = 1 << 11

// replicaBytes returns the replica of a step; nil: it has none. Two replicas differ in every block.
func (s saved) replicaBytes() []byte {
	if s.replica == 0 {
		return nil
	}
	p := bytes.Clone(noise())
	for at := 0; at < len(p); at += stampEvery {
		binary.LittleEndian.PutUint64(p[at:], s.replica)
		binary.LittleEndian.PutUint64(p[at+8:], uint64(at))
	}
	return p
}

// checkReplica loads the replica of a checkpoint and compares it.
func (s saved) checkReplica(ctx context.Context, k *ckpt.Checkpoint) error {
	want := s.replicaBytes()
	if want == nil {
		return nil
	}
	got, err := k.ReadTensor(ctx, replicaName)
	if err == nil && !bytes.Equal(got, want) {
		err = wrongf("other bytes in the replicas of attempt %d step %d", k.Info.Attempt, k.Info.Step)
	}
	return err
}

// replicates makes the ranks of each step have a replica, until end. number tells replicas apart.
func (w *world) replicates(number func(stepKey) uint64) (end func()) {
	w.replica = number
	w.trap.forgetHolder()
	return func() { w.replica = nil }
}

// ofStep gives each step a replica of its own.
func ofStep(k stepKey) uint64 { return uint64(k.attempt)<<32 | k.step }

// claimsFailed counts the parts that got no answer to a claim: each stores its replica.
func (w *world) claimsFailed() (sum float64, err error) {
	for _, n := range w.nodes {
		var m dto.Metric
		if err := n.metrics.ClaimsFailed.Write(&m); err != nil {
			return 0, err
		}
		sum += m.GetCounter().GetValue()
	}
	return sum, nil
}

// storedOnce checks that one part of a committed step has its replica. failed is how many claims had no answer
// before it was saved: if more have none now, several parts may have the replica.
func (w *world) storedOnce(ctx context.Context, k stepKey, failed float64) error {
	info, err := w.step(ctx, k)
	if err != nil {
		return err
	}
	now, err := w.claimsFailed()
	if err != nil {
		return err
	}
	copies, want := 0, w.m.saved(k).replicaBytes()
	for rank := range info.World {
		p, err := w.readPart(ctx, info, rank)
		if err != nil {
			return err
		}
		if bytes.Contains(p, want) {
			copies++
		}
	}
	w.log("%d copies of the replica", copies)
	if copies == 0 || copies > 1 && now == failed {
		return wrongf("attempt %d step %d has %d copies of a tensor that all ranks have saved; %s", k.attempt, k.step, copies, fmt.Sprint("claims without an answer: ", now-failed))
	}
	return nil
}
