package state_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// losses is a run of checkpoints whose stripes are two copies on devices that fail.
type losses struct {
	*ckptScript
	dice    *rand.Rand
	attempt uint32
	steps   []*lossStep
	out     map[uint32]bool
	look    *ckpt.StepLook
	// between, if not nil, is called after the leader finds a step whole and before it proposes so.
	between func()
}

// lossStep is a committed checkpoint of the model.
type lossStep struct {
	attempt uint32
	step    uint64
	stripes []*wire.Stripe
	bad     map[uint64]uint32 // stripe -> chunks that were reported, by bit
	inodes  []uint64
	removed bool
}

func newLosses(t *testing.T, seed uint64) *losses {
	l := &losses{ckptScript: &ckptScript{bench: newCluster(t, 6), sessions: map[string]*client{}}, dice: rand.New(rand.NewPCG(seed, 2)),
		out: map[uint32]bool{}}
	l.launch()
	return l
}

// launch begins the next attempt.
func (l *losses) launch() {
	l.attempt++
	l.must("a", fmt.Sprintf("open r launch=L%d takeover=1", l.attempt))
}

func (l *losses) must(who, line string) string {
	l.t.Helper()
	out := l.ckptScript.run(who, words(line))
	if strings.Contains(out, ": ") && !strings.Contains(out, "lost") {
		l.t.Fatalf("%s %s: %s", who, line, out)
	}
	return out
}

// commit saves a checkpoint of one rank with some files, of some stripes each.
func (l *losses) commit(number uint64, files, stripes int) *lossStep {
	l.t.Helper()
	s := &lossStep{attempt: l.attempt, step: number, bad: map[uint64]uint32{}}
	c := l.session("a")
	key := &wire.StepKey{Run: l.run1, Attempt: l.attempt, Step: number}
	l.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{Key: key, World: 1}}}))
	digest := sha256.Sum256(nil)
	seal := &wire.SealPart{Key: key, Digest: digest[:], Protects: 1}
	for f := range files {
		inode := l.ok(c.create(&wire.Create{Parent: c.root, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr().GetInode()
		commit := &wire.Commit{Inode: inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe)}
		for n := range stripes {
			devices := l.dice.Perm(6)
			for l.out[uint32(devices[0]+1)] && l.out[uint32(devices[1]+1)] {
				devices = l.dice.Perm(6)
			}
			st := stripe(c.grant(0, 1), 100, uint32(devices[0]+1), uint32(devices[1]+1))
			commit.Stripes = append(commit.Stripes, st)
			commit.Extents = append(commit.Extents, extent(uint64(n)*100, 100, st.Id, 0))
		}
		if resp := c.commit(commit); resp.GetError() != nil {
			l.must("a", fmt.Sprintf("abort step=%d/%d", l.attempt, number))
			return nil // its devices are out
		}
		s.stripes, s.inodes = append(s.stripes, commit.Stripes...), append(s.inodes, inode)
		seal.Files = append(seal.Files, &wire.PartFile{Inode: inode, Name: fmt.Sprintf("part-%d", f), Size: uint64(stripes) * 100, Crc: 7})
	}
	l.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: seal}}))
	l.must("m", "lease")
	l.must("m", fmt.Sprintf("commit step=%d/%d index=none", l.attempt, number))
	l.steps = append(l.steps, s)
	return s
}

// lostNow reports whether some bytes of a checkpoint exist nowhere.
func (l *losses) lostNow(s *lossStep) bool {
	return slices.ContainsFunc(s.stripes, func(st *wire.Stripe) bool {
		left := 0
		for i, c := range st.Chunks {
			if !l.out[c.Device] && s.bad[st.Id]&(1<<i) == 0 {
				left++
			}
		}
		return left == 0
	})
}

// spoil reports a chunk as bad.
func (l *losses) spoil(s *lossStep, stripe, chunk int) {
	st := s.stripes[stripe]
	s.bad[st.Id] |= 1 << chunk
	l.ok(l.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: []*wire.BadChunk{
		{Stripe: st.Id, Index: uint32(chunk), Device: st.Chunks[chunk].Device, Kind: uint32(moraine.Corrupt)}}}}}))
}

func (l *losses) lose(s *lossStep, stripe int) {
	l.spoil(s, stripe, 0)
	l.spoil(s, stripe, 1)
}

func (l *losses) devicesOut() (n int) {
	for _, out := range l.out {
		if out {
			n++
		}
	}
	return n
}

func (l *losses) device(d uint32, out bool) {
	l.out[d] = out
	to := wire.DeviceState_DEVICE_STATE_IN
	if out {
		to = wire.DeviceState_DEVICE_STATE_OUT
	}
	l.ok(l.setDevice(&wire.SetDeviceState{Device: d, State: to}))
}

// judge continues the leader's inspection and applies its findings.
func (l *losses) judge(limit int) {
	if l.look == nil {
		l.look = &ckpt.StepLook{}
	}
	if err := ckpt.FindStepLoss(l.m.View(l.kv), l.look, limit); err != nil {
		l.t.Fatal(err)
	}
	changes, _, _, err := ckpt.StepLosses(l.m.View(l.kv))
	if err != nil {
		l.t.Fatal(err)
	}
	if op := l.look.Judge(changes); op != nil {
		if l.between != nil && len(op.Found) > 0 {
			l.between()
		}
		l.ok(l.apply(&statepb.Command{Op: &statepb.Command_JudgeSteps{JudgeSteps: op}}).Response)
	}
	if l.look.Done {
		l.look = nil
	}
}

// settle lets the leader scan all devices and inspect all checkpoints.
func (l *losses) settle() {
	for l.runLeaderJob(wire.JobKind_JOB_KIND_SCAN_DEVICE, 100) {
	}
	l.look = nil
	for l.judge(5); l.look != nil; {
		l.judge(5)
	}
}

// suspect lets the leader scan all devices and inspect the suspected checkpoints.
func (l *losses) suspect() {
	for l.runLeaderJob(wire.JobKind_JOB_KIND_SCAN_DEVICE, 100) {
	}
	look, _, err := ckpt.LossSuspects(l.m.View(l.kv), nil, true)
	if err != nil {
		l.t.Fatal(err)
	}
	for l.look = look; l.look != nil; {
		l.judge(5)
	}
}

// states lists the checkpoints as `ckpt ls` does, and those that the links and ResolveStep name.
// These must always agree on the newest good one.
func (l *losses) states() (listed map[string]string, latest string) {
	l.t.Helper()
	c := l.session("reader")
	listed = map[string]string{}
	newest, steps := "", l.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: l.run1}}})).GetSteps().GetSteps()
	for _, s := range steps {
		listed[s.Path] = stepState(s)
		if s.State == wire.StepState_STEP_STATE_COMMITTED {
			newest = s.Path
		}
		if (s.State == wire.StepState_STEP_STATE_LOST) != (s.Loss != nil && s.Loss.Name != "" && s.Reason != "") {
			l.t.Errorf("%s: says of its loss %v (%s)", s.Path, s.Loss, s.Reason)
		}
	}
	for _, name := range []string{"latest", "latest-memory", "latest-nvme"} {
		to := c.walk("/r/" + name)
		entry := c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: l.run1}}})).GetReadDir().GetEntries()
		target := ""
		for _, e := range entry {
			if e.Name == name {
				target = e.Attr.Target
			}
		}
		if target != newest {
			l.t.Errorf("%s names %q, the newest good checkpoint of the list is %q", name, target, newest)
		}
		if target != "" && !to.GetWalk().GetFound() {
			l.t.Errorf("%s dangles: %s", name, target)
		}
	}
	resp := c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{Run: l.run1, Level: uint32(moraine.NVMe)}}})
	if got := resp.GetStep().GetStep().GetPath(); got != newest {
		l.t.Errorf("ResolveStep gives %q (%s), want %q", got, kind(resp), newest)
	}
	return listed, newest
}

func (s *lossStep) path() string { return fmt.Sprintf("attempt-%d/step-%d", s.attempt, s.step) }

// holdTruth checks that exactly the lost checkpoints are recorded as lost.
func (l *losses) holdTruth() {
	l.t.Helper()
	listed, _ := l.states()
	for _, s := range l.steps {
		want := "committed"
		if l.lostNow(s) {
			want = "lost"
		}
		if s.removed {
			want = ""
		}
		if listed[s.path()] != want {
			l.t.Errorf("%s is %q, want %q", s.path(), listed[s.path()], want)
		}
	}
	l.check()
}

// TestALostStepIsNotLatest: from one entry on, a committed checkpoint with lost bytes is recorded
// as lost, and the links and ResolveStep skip it. It is committed again when the bytes are found.
func TestALostStepIsNotLatest(t *testing.T) {
	l := newLosses(t, 1)
	l.commit(10, 2, 3)
	l.commit(20, 2, 3)
	newest := l.commit(30, 2, 3)
	l.holdTruth()
	expect := func(want string) {
		t.Helper()
		if _, latest := l.states(); latest != want {
			t.Errorf("latest is %q, want %q", latest, want)
		}
	}
	expect("attempt-1/step-30")
	l.spoil(newest, 4, 0)
	l.settle()
	expect("attempt-1/step-30")

	// The device with the other copy goes out: the bytes exist nowhere.
	other := newest.stripes[4].Chunks[1].Device
	l.device(other, true)
	l.settle()
	l.holdTruth()
	lost := l.ok(l.session("reader").read(&wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{Step: &wire.StepKey{Run: l.run1, Attempt: 1, Step: 30}}}})).GetLost()
	if len(lost.GetFiles()) != 1 || lost.Files[0].Path != "part-1" || fmt.Sprint(lost.Files[0].Ranges) != fmt.Sprint([]*wire.ByteRange{{Offset: 100, Length: 100}}) {
		t.Errorf("lost files: %v", lost)
	}
	expect("attempt-1/step-20")
	exact := &wire.ResolveStep{Run: l.run1, Step: 30, Exact: true}
	if got := kind(l.session("reader").read(&wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: exact}})); got != moraine.Lost.String() {
		t.Errorf("a lost step by its number: %s", got)
	}
	if links := l.links(); !strings.Contains(links, "step-30->attempt-1/step-30") {
		t.Errorf("the step's own link: %s", links)
	}

	// It is found again.
	l.device(other, false)
	l.settle()
	l.holdTruth()
	expect("attempt-1/step-30")
	l.replays()
}

// TestALostStepIsRemovedAsOthersAre: a lost checkpoint is as immutable as a good one. A run without
// a good one keeps it; a run with one can remove it without force.
func TestALostStepIsRemovedAsOthersAre(t *testing.T) {
	l := newLosses(t, 2)
	first := l.commit(10, 1, 2)
	second := l.commit(20, 1, 2)
	l.lose(second, 0)
	l.settle()
	remove := func(step uint64, force bool) string {
		return kind(l.session("a").do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
			Key: &wire.StepKey{Run: l.run1, Attempt: 1, Step: step}, Force: force}}}))
	}
	if got := remove(10, false); got != moraine.Immutable.String() {
		t.Errorf("the only good one, beside one that is lost: %s", got)
	}
	if got := kind(l.session("a").do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: second.inodes[0],
		Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: 0o700}}})); got != moraine.Immutable.String() {
		t.Errorf("chmod of a part of a lost step: %s", got)
	}
	if got := remove(20, false); got != "ok" {
		t.Errorf("a lost one beside a good one: %s", got)
	}
	second.removed = true
	l.lose(first, 1)
	l.settle()
	l.holdTruth()
	if got := remove(10, false); got != moraine.Immutable.String() {
		t.Errorf("a lost one of a run without a good one: %s", got)
	}
	if got := remove(10, true); got != "ok" {
		t.Errorf("with force: %s", got)
	}
	first.removed = true
	l.holdTruth()
	l.replays()
}

// TestAnAttemptThatGoesOnFromALostStep: the attempt gets an error, and a new launch continues from
// a good step.
func TestAnAttemptThatGoesOnFromALostStep(t *testing.T) {
	l := newLosses(t, 3)
	l.commit(10, 1, 1)
	parent := l.commit(20, 1, 1)
	l.launch()
	if out := l.ckptScript.run("a", words("fix attempt=2")); !strings.Contains(out, "1/20") {
		t.Fatalf("the parent: %s", out)
	}
	l.lose(parent, 0)
	l.settle()
	if out := l.ckptScript.run("a", words("fix attempt=2")); !strings.Contains(out, "lost") {
		t.Errorf("a rank that comes later: %s", out)
	}
	l.launch()
	if out := l.ckptScript.run("a", words("fix attempt=3")); !strings.Contains(out, "1/10") {
		t.Errorf("the next launch: %s", out)
	}
	l.check()
	l.replays()
}

// TestAFoundStepIsBelievedOnlyOfNow: the state ignores a leader's finding that a checkpoint is
// whole if a stripe was lost during the inspection.
func TestAFoundStepIsBelievedOnlyOfNow(t *testing.T) {
	l := newLosses(t, 4)
	l.commit(10, 1, 1)
	s := l.commit(20, 3, 2)
	l.spoil(s, 0, 0)
	l.spoil(s, 5, 0)
	l.device(s.stripes[0].Chunks[1].Device, true)
	l.settle()
	l.device(s.stripes[0].Chunks[1].Device, false)
	for l.runLeaderJob(wire.JobKind_JOB_KIND_SCAN_DEVICE, 100) {
	}
	between := 0
	l.between = func() {
		between++
		l.spoil(s, 0, 1)
	}
	l.look = nil
	for l.judge(100); l.look != nil; {
		l.judge(100)
	}
	if between != 1 {
		t.Fatalf("the step was found whole %d times", between)
	}
	l.holdTruth()
	l.settle()
	l.holdTruth()
}

// TestRandomStepLosses makes random histories of checkpoints that lose and regain bytes, are saved,
// removed and inspected in pieces. The links, the list and ResolveStep always agree, and are right
// after each full inspection.
func TestRandomStepLosses(t *testing.T) {
	first := testseed.First(t)
	for seed := first; seed < first+uint64(testseed.Runs(t, 5, 200)); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			l := newLosses(t, seed)
			number := uint64(0)
			for range 80 {
				switch n := l.dice.IntN(20); {
				case n < 4:
					number++
					l.commit(number, 1+l.dice.IntN(3), 1+l.dice.IntN(3))
				case n < 6 && len(l.steps) > 0:
					s := l.steps[l.dice.IntN(len(l.steps))]
					if !s.removed {
						l.spoil(s, l.dice.IntN(len(s.stripes)), l.dice.IntN(2))
					}
				case n < 9:
					d := uint32(1 + l.dice.IntN(6))
					if !l.out[d] && l.devicesOut() == 4 {
						break // a commit needs a device that is in
					}
					l.device(d, !l.out[d])
				case n < 10 && len(l.steps) > 0:
					l.removeRandom()
				case n < 11:
					l.launch()
				case n < 13:
					l.runLeaderJob(wire.JobKind_JOB_KIND_SCAN_DEVICE, 3)
					l.runLeaderJob(wire.JobKind_JOB_KIND_REMOVE_TREE, 10)
				case n < 18:
					l.judge(1 + l.dice.IntN(6))
				case n < 19:
					l.suspect()
					l.holdTruth()
				default:
					l.settle()
					l.holdTruth()
				}
				l.states()
				if t.Failed() {
					return
				}
			}
			l.settle()
			l.holdTruth()
			l.replays()
		})
	}
}

func (l *losses) removeRandom() {
	s := l.steps[l.dice.IntN(len(l.steps))]
	if s.removed {
		return
	}
	got := kind(l.session("a").do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
		Key: &wire.StepKey{Run: l.run1, Attempt: s.attempt, Step: s.step}, Force: l.dice.IntN(4) == 0}}}))
	switch got {
	case "ok":
		s.removed = true
	case moraine.Immutable.String():
	default:
		l.t.Fatalf("remove of %s: %s", s.path(), got)
	}
}

// TestAStepWholeInObjectsIsNotLost: a checkpoint loses stripes whose files are whole in verified
// objects. It stays latest, and the leader evicts those files so that readers use the objects.
func TestAStepWholeInObjectsIsNotLost(t *testing.T) {
	y, s := flushedStep(t, onCommit)
	y.drain()
	part := y.c.walk("/r/attempt-1/step-10/part-1").GetWalk().GetAttr().GetInode()
	extents := y.c.extents(part, 0, 10)
	st := extents.GetExtents().GetStripes()[0]
	report := &wire.ReportBadChunks{}
	for i, c := range st.GetChunks() {
		report.Chunks = append(report.Chunks, &wire.BadChunk{Stripe: st.Id, Index: uint32(i), Device: c.Device, Kind: uint32(moraine.Corrupt)})
	}
	y.ok(y.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: report}}))
	l := &losses{ckptScript: s}
	l.look = nil
	for l.judge(2); l.look != nil; {
		l.judge(2)
	}
	if links := s.links(); !strings.Contains(links, "latest->attempt-1/step-10") {
		t.Errorf("the links: %s", links)
	}
	y.drain()
	for _, e := range y.c.extents(part, 0, 10).GetExtents().GetExtents() {
		if e.Object == 0 {
			t.Errorf("an extent is still of a stripe that is lost: %v", e)
		}
	}
	if steps := s.query(s.session("reader"), "steps", words("step=0/0")); !strings.Contains(steps, "1/10:committed") {
		t.Errorf("the list: %s", steps)
	}
	y.check()
}

// TestAReaderKeepsTheStepThatItReads: an attempt saves the same step again while a reader restores
// the old one. The links move. The old step is removed only after its readers release it or their
// sessions end.
func TestAReaderKeepsTheStepThatItReads(t *testing.T) {
	for _, end := range []string{"x done step=1/20", "expire x", "x close"} {
		t.Run(end, func(t *testing.T) {
			s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
			for _, line := range []string{"a open r launch=L1", "a begin step=1/10 rank=0 world=1", "a seal step=1/10 rank=0", "m lease", "m commit step=1/10",
				"a begin step=1/20 rank=0 world=1", "a seal step=1/20 rank=0", "m lease", "m commit step=1/20", "x hold step=1/20",
				"b open r launch=L2 takeover=1", "b fix attempt=2 exact=10", "b begin step=2/20 rank=0 world=1", "b seal step=2/20 rank=0", "m lease", "m commit step=2/20"} {
				if out := s.line(line); strings.Contains(out, ": ") {
					t.Fatalf("%s: %s", line, out)
				}
			}
			if links := s.links(); !strings.Contains(links, "step-20->attempt-2/step-20") {
				t.Errorf("the links: %s", links)
			}
			for _, door := range []string{"b rm step=1/20 force=1", "b rmtree attempt-1/step-20 force=1", "b unlink attempt-1/step-20:index"} {
				if out := s.line(door); !strings.HasPrefix(out, "busy") {
					t.Errorf("%s while it is read: %s", door, out)
				}
			}
			s.line(end)
			if out := s.line("b rm step=1/20"); out != "ok" {
				t.Errorf("after %s: %s", end, out)
			}
			if out := s.line("y hold step=1/20"); out != "not found" {
				t.Errorf("a lease on what is removed: %s", out)
			}
			s.check()
			s.replays()
		})
	}
}
