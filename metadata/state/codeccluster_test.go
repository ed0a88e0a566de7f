package state

import (
	"bytes"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// record is a value that decodes into itself.
type record interface {
	encode() []byte
	decode([]byte) error
}

// again makes a codec's decoder of a record's constructor.
func again[R record](fresh func() R) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		r := fresh()
		err := r.decode(b)
		return r.encode(), err
	}
}

// clusterCodecs are the values that concern devices, repair, jobs and
// checkpoints.
var clusterCodecs = []codec{
	{"device", (&device{uuid: moraine.UUID{1, 15: 2}, host: "n1", state: deviceDraining, capacity: 1 << 42, epoch: 9, reason: "full",
		passed: 1000, unknownBytes: 4096, unknownChunks: 1, scan: 1<<40 | 4}).encode(), again(func() *device { return &device{} })},
	{"silent-device", (&device{uuid: moraine.UUID{1, 15: 2}, host: "n1", state: deviceOut, asked: deviceDraining, reason: ReasonSilent, was: "by hand"}).encode(),
		again(func() *device { return &device{} })},
	{"fitting-device", (&device{uuid: moraine.UUID{1, 15: 2}, host: "n1", state: deviceOut, passed: 7, fitting: 300}).encode(), again(func() *device { return &device{} })},
	{"host", (&host{rack: "r1", addresses: []string{"10.0.0.1:7000", "unix:/run/x"}, admin: "10.0.0.1:7001", release: "v0.1",
		devices: []moraine.DeviceID{1, 2, 300}, live: 2}).encode(), again(func() *host { return &host{} })},
	{"usage", usage{bytes: 1 << 40, inodes: 12_345}.encode(), func(b []byte) ([]byte, error) {
		var u usage
		err := u.decode(b)
		return u.encode(), err
	}},
	{"usage-damaged", usage{bytes: -5, inodes: -1 << 40}.encode(), func(b []byte) ([]byte, error) {
		var u usage
		err := u.decode(b)
		return u.encode(), err
	}},
	{"tree-clone", (&treeClone{top: 1<<40 | 5, parent: 1, name: "copy", from: 7, into: 8, generation: 1<<56 | 2, upTo: 1 << 30}).encode(), again(func() *treeClone { return &treeClone{} })},
	{"cloned-directory", (&clonedDir{into: 1<<40 | 9, last: "name"}).encode(), again(func() *clonedDir { return &clonedDir{} })},
	{"routing", encodeRouting(7), func(b []byte) ([]byte, error) {
		epoch, err := decodeRouting(b)
		return encodeRouting(epoch), err
	}},
	{"concatenation", (&concatJob{parent: 1, name: "object", replace: true, consume: 1<<40 | 6, mtime: 1 << 60, root: 1, session: 1<<40 | 2, ranges: 10_000, next: 300,
		taken: 1 << 20, generation: 1<<56 | 2, expect: &wire.Expect{Inode: 1<<40 | 7, Generation: 9}}).encode(), again(func() *concatJob { return &concatJob{} })},
	{"ranges-of-concatenation", encodeConcatRow([]concatRange{{1<<40 | 9, 1<<56 | 2, 0, 5 << 20}, {inode: 1<<40 | 10, offset: 7}}), func(b []byte) ([]byte, error) {
		r, err := decodeConcatRow(b)
		return encodeConcatRow(r), err
	}},
	{"concat-job", (&job{kind: wire.JobKind_JOB_KIND_CONCAT, state: wire.JobState_JOB_STATE_DONE, target: 1<<40 | 9, generation: 1<<56 | 40}).encode(),
		again(func() *job { return &job{} })},
	{"owned-job", (&job{kind: wire.JobKind_JOB_KIND_REMOVE_TREE, state: wire.JobState_JOB_STATE_PENDING, owner: 1<<40 | 7}).encode(),
		again(func() *job { return &job{} })},
	{"failed-concat-job", (&job{kind: wire.JobKind_JOB_KIND_CONCAT, state: wire.JobState_JOB_STATE_FAILED, err: "it was removed", why: moraine.NotFound,
		ending: wire.JobState_JOB_STATE_FAILED}).encode(), again(func() *job { return &job{} })},
	{"quota", quota{bytes: 10 << 40, inodes: 1_000_000}.encode(), func(b []byte) ([]byte, error) {
		var q quota
		err := q.decode(b)
		return q.encode(), err
	}},
	{"usage-state", (&usageState{live: 1, quotas: 3}).encode(), again(func() *usageState { return &usageState{} })},
	{"usage-recount", (&usageState{live: 1, quotas: 300, phase: recountCompare, building: 2, job: 1<<40 | 7, counted: 1<<64 - 1, compared: 1<<40 | 9,
		wrong: 2, first: 1<<40 | 3, was: usage{-1, 2, 0}, now: usage{1 << 33, 9, 3}}).encode(), again(func() *usageState { return &usageState{} })},
	{"fleet", (&fleet{hosts: 6, devices: 12}).encode(), again(func() *fleet { return &fleet{} })},
	{"presence", (&tx{index: 70000}).presence(), func(b []byte) ([]byte, error) {
		at, err := decodePresence(b)
		return (&tx{index: at}).presence(), err
	}},
	{"tombstone", tombstone{below: 3, bytes: 1 << 22}.encode(), func(b []byte) ([]byte, error) {
		s, err := decodeTombstone(b)
		return s.encode(), err
	}},
	{"repair-item", (&repairItem{spare: 1, bad: 1<<31 | 1, since: 5000, job: 1<<40 | 7, tries: 2, after: 9000}).encode(), again(func() *repairItem { return &repairItem{} })},
	{"repair-item-balance", (&repairItem{spare: 2, since: 5000, job: 1<<40 | 7, balance: true}).encode(), again(func() *repairItem { return &repairItem{} })},
	{"rebalance", RebalanceSettings{Paused: true, BandPermille: 50, BytesPerSecond: 64 << 20}.encode(), again(func() *RebalanceSettings { return &RebalanceSettings{} })},
	{"intent", (&intent{job: 1<<40 | 7, device: 4, version: 3, base: 2}).encode(), again(func() *intent { return &intent{} })},
	{"ended-intent", endedIntent{at: 77, since: 5000}.encode(), func(b []byte) ([]byte, error) {
		e, err := decodeEndedIntent(b)
		return e.encode(), err
	}},
	{"job", (&job{kind: wire.JobKind_JOB_KIND_COMMIT_STEP, state: wire.JobState_JOB_STATE_RUNNING, holder: "n2", epoch: 3, until: 15000, done: 1,
		total: 4, err: "no memory", created: 10, updated: 20, subject: "attempt-1/step-10", step: stepID{1<<40 | 9, 1, 10}, target: 8,
		cursor: []byte{1, 2}, leases: 3, tries: 2, after: 12000, stripes: []moraine.StripeID{1<<40 | 1}}).encode(), again(func() *job { return &job{} })},
	{"host-away", (&host{addresses: []string{"10.0.0.1:7000"}, away: 90_000, awayWhy: "new kernel"}).encode(), again(func() *host { return &host{} })},
	{"host-with-bucket", (&host{addresses: []string{"10.0.0.1:7000"}, bucket: "s3://b/p"}).encode(), again(func() *host { return &host{} })},
	{"flush-job", (&job{kind: wire.JobKind_JOB_KIND_FLUSH, state: wire.JobState_JOB_STATE_RUNNING, holder: "n2", epoch: 3, until: 15000, subject: "f", target: 1<<40 | 9,
		parent: 1<<40 | 3, again: true, made: true, ending: wire.JobState_JOB_STATE_CANCELED}).encode(), again(func() *job { return &job{} })},
	{"tree-job", (&job{kind: wire.JobKind_JOB_KIND_MOVE_TREE, state: wire.JobState_JOB_STATE_PENDING, target: 1<<40 | 9, moves: wire.JobKind_JOB_KIND_EVICT}).encode(),
		again(func() *job { return &job{} })},
	{"tree-dir", putString([]byte{1}, "name"), func(b []byte) ([]byte, error) {
		name, err := decodeTreeDir(b)
		return putString([]byte{1}, name), err
	}},
	{"object", (&object{at: place{"b", "p/run/part"}, version: "v1", etag: "abc-2", size: 1 << 33, crc: 0xdeadbeef, inode: 1<<40 | 9, generation: 1<<56 | 4, refs: 2,
		newest: true, piece: 1 << 24, tenant: 1, kept: true, job: 1<<40 | 7, verified: wire.Verified_VERIFIED_READ_BACK}).encode(), again(func() *object { return &object{} })},
	{"policy", (&policy{flush: wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT, scheme: moraine.Scheme{K: 4, M: 2}, foreign: wire.ForeignPolicy_FOREIGN_POLICY_OVERWRITE}).encode(), again(func() *policy { return &policy{} })},
	{"object-key", (&owner{object: 1<<40 | 2, job: 1<<40 | 7, until: 900000}).encode(), again(func() *owner { return &owner{} })},
	{"object-sums", encodeSums([]uint32{1, 0xdeadbeef}), func(b []byte) ([]byte, error) {
		sums, err := decodeSums(b)
		return encodeSums(sums), err
	}},
	{"object-intent", (&objectIntent{kind: wire.IntentKind_INTENT_KIND_UPLOAD, at: place{"b", "p/f"}, generation: 1<<56 | 4, uploadID: "u", epoch: 2, completing: true,
		etag: "abc-2", size: 9, crc: 7, source: "p/g", object: 1<<40 | 2}).encode(), again(func() *objectIntent { return &objectIntent{} })},
	{"run", (&run{attempt: 3, committed: 17}).encode(), again(func() *run { return &run{} })},
	{"attempt", (&attempt{launch: "slurm-77-1", job: "77", restart: 1, resolved: true, parent: stepID{1<<40 | 9, 1, 10}}).encode(), again(func() *attempt { return &attempt{} })},
	{"open-step", (&step{state: stepOpen, world: 4, sealed: 1, dir: 1<<40 | 30, timeout: 60000, lastSeal: 5000, bytes: 100, level: moraine.NVMe, protects: 2}).encode(),
		again(func() *step { return &step{} })},
	{"aborted-step", (&step{state: stepAborted, world: 4, sealed: 2, reason: "missing: ranks 1, 3", missing: []uint32{1, 3}}).encode(), again(func() *step { return &step{} })},
	{"committed-step", (&step{state: stepCommitted, world: 4, sealed: 4, dir: 1<<40 | 30, timeout: 60000, lastSeal: 5000, bytes: 1 << 40, level: moraine.NVMe,
		at: 1 << 60, degraded: 1, protects: 1, job: 1<<40 | 9, digest: bytes.Repeat([]byte{7}, 32)}).encode(), again(func() *step { return &step{} })},
	{"lost-step", (&step{state: stepCommitted, world: 4, sealed: 4, dir: 1<<40 | 30, bytes: 1 << 40, level: moraine.NVMe, digest: bytes.Repeat([]byte{7}, 32),
		index: 1<<40 | 33, loss: stepLoss{1<<40 | 31, 1 << 33}}).encode(), again(func() *step { return &step{} })},
	{"begun-part", (&part{session: 1<<40 | 2}).encode(), again(func() *part { return &part{} })},
	{"sealed-part", (&part{session: 1<<40 | 2, sealed: true, digest: [32]byte{9}, files: []partFile{{1<<40 | 31, "model-00001-of-00004.safetensors", 0xdeadbeef, 1 << 33}}}).encode(),
		again(func() *part { return &part{} })},
	{"block", (&block{sealed: []byte{0x0f}, digest: bytes.Repeat([]byte{8}, 32)}).encode(), again(func() *block { return &block{} })},
	{"file-below-nvme", unsafeFile{generation: 1<<56 | 4, upTo: 1 << 33}.encode(), again(func() *unsafeFile { return &unsafeFile{} })},
	{"lost-file", unsafeFile{generation: 1<<56 | 4, upTo: 1 << 33, mark: 1 << 34, found: true}.encode(), again(func() *unsafeFile { return &unsafeFile{} })},
}
