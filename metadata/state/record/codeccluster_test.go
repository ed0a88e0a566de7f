package record

import (
	"bytes"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// coded is a value that decodes into itself.
type coded interface {
	Encode() []byte
	Decode([]byte) error
}

// again makes the decoder of a kind of value from a constructor of the record.
func again[R coded](fresh func() R) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		r := fresh()
		err := r.Decode(b)
		return r.Encode(), err
	}
}

// clusterCodecs are the codecs of devices, repair, jobs and checkpoints.
var clusterCodecs = []valueKind{
	{"device", (&Device{Uuid: moraine.UUID{1, 15: 2}, Host: "n1", State: DeviceDraining, Capacity: 1 << 42, Epoch: 9, Reason: "full",
		Passed: 1000, UnknownBytes: 4096, UnknownChunks: 1, Scan: 1<<40 | 4}).Encode(), again(func() *Device { return &Device{} })},
	{"silent-device", (&Device{Uuid: moraine.UUID{1, 15: 2}, Host: "n1", State: DeviceOut, Asked: DeviceDraining, Reason: ReasonSilent, Was: "by hand"}).Encode(),
		again(func() *Device { return &Device{} })},
	{"fitting-device", (&Device{Uuid: moraine.UUID{1, 15: 2}, Host: "n1", State: DeviceOut, Passed: 7, Fitting: 300}).Encode(), again(func() *Device { return &Device{} })},
	{"host", (&Host{Rack: "r1", Addresses: []string{"10.0.0.1:7000", "unix:/run/x"}, Admin: "10.0.0.1:7001", Release: "v0.1",
		Devices: []moraine.DeviceID{1, 2, 300}, Live: 2}).Encode(), again(func() *Host { return &Host{} })},
	{"usage", Usage{Bytes: 1 << 40, Inodes: 12_345}.Encode(), func(b []byte) ([]byte, error) {
		var u Usage
		err := u.Decode(b)
		return u.Encode(), err
	}},
	{"usage-damaged", Usage{Bytes: -5, Inodes: -1 << 40}.Encode(), func(b []byte) ([]byte, error) {
		var u Usage
		err := u.Decode(b)
		return u.Encode(), err
	}},
	{"tree-clone", (&TreeClone{Top: 1<<40 | 5, Parent: 1, Name: "copy", FileClone: FileClone{From: 7, Into: 8, Generation: 1<<56 | 2, UpTo: 1 << 30}}).Encode(), again(func() *TreeClone { return &TreeClone{} })},
	{"cloned-directory", (&ClonedDir{Into: 1<<40 | 9, Last: "name"}).Encode(), again(func() *ClonedDir { return &ClonedDir{} })},
	{"routing", EncodeRouting(7), func(b []byte) ([]byte, error) {
		epoch, err := DecodeRouting(b)
		return EncodeRouting(epoch), err
	}},
	{"concatenation", (&ConcatJob{Parent: 1, Name: "object", Replace: true, Consume: 1<<40 | 6, Mtime: 1 << 60, Root: 1, Session: 1<<40 | 2, Ranges: 10_000, Next: 300,
		Taken: 1 << 20, Generation: 1<<56 | 2, Expect: &wire.Expect{Inode: 1<<40 | 7, Generation: 9}}).Encode(), again(func() *ConcatJob { return &ConcatJob{} })},
	{"ranges-of-concatenation", EncodeConcatRow([]ConcatRange{{1<<40 | 9, 1<<56 | 2, 0, 5 << 20}, {Inode: 1<<40 | 10, Offset: 7}}), func(b []byte) ([]byte, error) {
		r, err := DecodeConcatRow(b)
		return EncodeConcatRow(r), err
	}},
	{"concat-job", (&Job{Kind: wire.JobKind_JOB_KIND_CONCAT, State: wire.JobState_JOB_STATE_DONE, Target: 1<<40 | 9, Generation: 1<<56 | 40}).Encode(),
		again(func() *Job { return &Job{} })},
	{"owned-job", (&Job{Kind: wire.JobKind_JOB_KIND_REMOVE_TREE, State: wire.JobState_JOB_STATE_PENDING, Owner: 1<<40 | 7}).Encode(),
		again(func() *Job { return &Job{} })},
	{"failed-concat-job", (&Job{Kind: wire.JobKind_JOB_KIND_CONCAT, State: wire.JobState_JOB_STATE_FAILED, Err: "it was removed", Why: moraine.NotFound,
		Ending: wire.JobState_JOB_STATE_FAILED}).Encode(), again(func() *Job { return &Job{} })},
	{"quota", Quota{Bytes: 10 << 40, Inodes: 1_000_000}.Encode(), func(b []byte) ([]byte, error) {
		var q Quota
		err := q.Decode(b)
		return q.Encode(), err
	}},
	{"usage-state", (&UsageState{Live: 1, Quotas: 3}).Encode(), again(func() *UsageState { return &UsageState{} })},
	{"usage-recount", (&UsageState{Live: 1, Quotas: 300, Phase: RecountCompare, Building: 2, Job: 1<<40 | 7, Counted: 1<<64 - 1, Compared: 1<<40 | 9,
		Wrong: 2, First: 1<<40 | 3, Was: Usage{-1, 2, 0}, Now: Usage{1 << 33, 9, 3}}).Encode(), again(func() *UsageState { return &UsageState{} })},
	{"fleet", (&Fleet{Hosts: 6, Devices: 12}).Encode(), again(func() *Fleet { return &Fleet{} })},
	{"presence", EncodePresence(70000), func(b []byte) ([]byte, error) {
		at, err := DecodePresence(b)
		return EncodePresence(at), err
	}},
	{"tombstone", Tombstone{Below: 3, Bytes: 1 << 22}.Encode(), func(b []byte) ([]byte, error) {
		s, err := DecodeTombstone(b)
		return s.Encode(), err
	}},
	{"repair-item", (&RepairItem{Spare: 1, Bad: 1<<31 | 1, Since: 5000, Job: 1<<40 | 7, Tries: 2, After: 9000}).Encode(), again(func() *RepairItem { return &RepairItem{} })},
	{"repair-item-balance", (&RepairItem{Spare: 2, Since: 5000, Job: 1<<40 | 7, Balance: true}).Encode(), again(func() *RepairItem { return &RepairItem{} })},
	{"rebalance", RebalanceSettings{Paused: true, BandPermille: 50, BytesPerSecond: 64 << 20}.Encode(), again(func() *RebalanceSettings { return &RebalanceSettings{} })},
	{"intent", (&Intent{Job: 1<<40 | 7, Device: 4, Version: 3, Base: 2}).Encode(), again(func() *Intent { return &Intent{} })},
	{"ended-intent", EndedIntent{At: 77, Since: 5000}.Encode(), func(b []byte) ([]byte, error) {
		e, err := DecodeEndedIntent(b)
		return e.Encode(), err
	}},
	{"job", (&Job{Kind: wire.JobKind_JOB_KIND_COMMIT_STEP, State: wire.JobState_JOB_STATE_RUNNING, Holder: "n2", Epoch: 3, Until: 15000, Done: 1,
		Total: 4, Err: "no memory", Created: 10, Updated: 20, Subject: "attempt-1/step-10", Step: StepID{1<<40 | 9, 1, 10}, Target: 8,
		Cursor: []byte{1, 2}, Leases: 3, Tries: 2, After: 12000, Stripes: []moraine.StripeID{1<<40 | 1}}).Encode(), again(func() *Job { return &Job{} })},
	{"host-away", (&Host{Addresses: []string{"10.0.0.1:7000"}, Away: 90_000, AwayWhy: "new kernel"}).Encode(), again(func() *Host { return &Host{} })},
	{"host-with-bucket", (&Host{Addresses: []string{"10.0.0.1:7000"}, Bucket: "s3://b/p"}).Encode(), again(func() *Host { return &Host{} })},
	{"flush-job", (&Job{Kind: wire.JobKind_JOB_KIND_FLUSH, State: wire.JobState_JOB_STATE_RUNNING, Holder: "n2", Epoch: 3, Until: 15000, Subject: "f", Target: 1<<40 | 9,
		Parent: 1<<40 | 3, Again: true, Made: true, Ending: wire.JobState_JOB_STATE_CANCELED}).Encode(), again(func() *Job { return &Job{} })},
	{"tree-job", (&Job{Kind: wire.JobKind_JOB_KIND_MOVE_TREE, State: wire.JobState_JOB_STATE_PENDING, Target: 1<<40 | 9, Moves: wire.JobKind_JOB_KIND_EVICT}).Encode(),
		again(func() *Job { return &Job{} })},
	{"tree-dir", putString([]byte{1}, "name"), func(b []byte) ([]byte, error) {
		name, err := DecodeTreeDir(b)
		return putString([]byte{1}, name), err
	}},
	{"object", (&Object{At: Place{"b", "p/run/part"}, Version: "v1", Etag: "abc-2", Size: 1 << 33, Crc: 0xdeadbeef, Inode: 1<<40 | 9, Generation: 1<<56 | 4, Refs: 2,
		Newest: true, Piece: 1 << 24, Tenant: 1, Kept: true, Job: 1<<40 | 7, Verified: wire.Verified_VERIFIED_READ_BACK}).Encode(), again(func() *Object { return &Object{} })},
	{"policy", (&Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT, Scheme: moraine.Scheme{K: 4, M: 2}, Foreign: wire.ForeignPolicy_FOREIGN_POLICY_OVERWRITE,
		Format: wire.CheckpointFormat_CHECKPOINT_FORMAT_HF, QuietMillis: 60_000, Levels: []LevelPolicy{{Level: moraine.Memory, Every: 1, KeepLast: 2},
			{Level: moraine.NVMe, Every: 10, KeepEvery: 100, KeepMillis: 1 << 30, KeepBytes: 1 << 40, KeepTags: []string{"best"}}}}).Encode(), again(func() *Policy { return &Policy{} })},
	{"object-key", (&Owner{Object: 1<<40 | 2, Job: 1<<40 | 7, Until: 900000}).Encode(), again(func() *Owner { return &Owner{} })},
	{"object-sums", EncodeSums([]uint32{1, 0xdeadbeef}), func(b []byte) ([]byte, error) {
		sums, err := DecodeSums(b)
		return EncodeSums(sums), err
	}},
	{"object-intent", (&ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, At: Place{"b", "p/f"}, Generation: 1<<56 | 4, UploadID: "u", Epoch: 2, Completing: true,
		Etag: "abc-2", Size: 9, Crc: 7, Source: "p/g", Object: 1<<40 | 2}).Encode(), again(func() *ObjectIntent { return &ObjectIntent{} })},
	{"run", (&Run{Attempt: 3, Committed: 17}).Encode(), again(func() *Run { return &Run{} })},
	{"attempt", (&Attempt{Launch: "slurm-77-1", Job: "77", Restart: 1, Resolved: true, Parent: StepID{1<<40 | 9, 1, 10}, Stepped: 3, Before: 5, Saved: true, SavedStep: 12}).Encode(), again(func() *Attempt { return &Attempt{} })},
	{"open-step", (&Step{State: StepOpen, World: 4, Sealed: 1, Dir: 1<<40 | 30, Timeout: 60000, LastSeal: 5000, Bytes: 100, Level: moraine.NVMe, Protects: 2}).Encode(),
		again(func() *Step { return &Step{} })},
	{"aborted-step", (&Step{State: StepAborted, World: 4, Sealed: 2, Reason: "missing: ranks 1, 3", Missing: []uint32{1, 3}}).Encode(), again(func() *Step { return &Step{} })},
	{"committed-step", (&Step{State: StepCommitted, World: 4, Sealed: 4, Dir: 1<<40 | 30, Timeout: 60000, LastSeal: 5000, Bytes: 1 << 40, Level: moraine.NVMe,
		At: 1 << 60, Degraded: 1, Protects: 1, Job: 1<<40 | 9, Digest: bytes.Repeat([]byte{7}, 32), Files: 9, BelowObject: 3, Reached: [3]int64{5, 1 << 60, 0},
		Mark: StepQuarantined, Note: "diverged", Tags: []string{"best", "eval"}, Pinned: true}).Encode(), again(func() *Step { return &Step{} })},
	{"lost-step", (&Step{State: StepCommitted, World: 4, Sealed: 4, Dir: 1<<40 | 30, Bytes: 1 << 40, Level: moraine.NVMe, Digest: bytes.Repeat([]byte{7}, 32),
		Index: 1<<40 | 33, Loss: StepLoss{1<<40 | 31, 1 << 33}}).Encode(), again(func() *Step { return &Step{} })},
	{"begun-part", (&Part{Session: 1<<40 | 2, Begun: 1 << 60, Reserved: 1 << 33, Claims: 16}).Encode(), again(func() *Part { return &Part{} })},
	{"sealed-part", (&Part{Session: 1<<40 | 2, Begun: 1 << 60, SealedAt: 1<<60 | 5, Sealed: true, Digest: [32]byte{9}, Files: []PartFile{{1<<40 | 31, "model-00001-of-00004.safetensors", 0xdeadbeef, 1 << 33, From{}}}}).Encode(),
		again(func() *Part { return &Part{} })},
	{"adopted-part", (&Part{Sealed: true, Digest: [32]byte{9}, Files: []PartFile{{1<<40 | 31, "__0_0.distcp", 0, 1 << 33, From{1<<40 | 7, 1<<56 | 4}}}}).Encode(),
		again(func() *Part { return &Part{} })},
	{"adopted-step", (&Step{State: StepOpen, World: 2, Sealed: 1, Dir: 1<<40 | 30, Format: wire.CheckpointFormat_CHECKPOINT_FORMAT_DCP, From: 1<<40 | 6, Adopter: 1<<40 | 7}).Encode(),
		again(func() *Step { return &Step{} })},
	{"adoption", (&Adoption{Format: wire.CheckpointFormat_CHECKPOINT_FORMAT_HF, Quiet: true, Again: true, Phase: AdoptCopy, Last: "a/b", N: 65, Files: 100, Sum: 5, Seen: 6, Refused: 7,
		Clone: FileClone{From: 7, Into: 8, Generation: 1<<56 | 2, UpTo: 1 << 30}, Part: []PartFile{{1<<40 | 32, "a%2Fb", 0, 9, From{1<<40 | 8, 1<<56 | 5}}}}).Encode(),
		again(func() *Adoption { return &Adoption{} })},
	{"block", (&Block{Sealed: []byte{0x0f}, Digest: bytes.Repeat([]byte{8}, 32)}).Encode(), again(func() *Block { return &Block{} })},
	{"file-below-nvme", UnsafeFile{Generation: 1<<56 | 4, UpTo: 1 << 33}.Encode(), again(func() *UnsafeFile { return &UnsafeFile{} })},
	{"lost-file", UnsafeFile{Generation: 1<<56 | 4, UpTo: 1 << 33, Mark: 1 << 34, Found: true}.Encode(), again(func() *UnsafeFile { return &UnsafeFile{} })},
}
