package state_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// TestCheckpointTranscripts replays testdata/checkpoints: runs, attempts and
// steps. Each line is one command of a session, "SESSION verb ...", or of the
// cluster; after each file the state is checked.
func TestCheckpointTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/checkpoints", func(t *testing.T, file string) {
		s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			var out strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				who, rest, _ := strings.Cut(line, " ")
				fmt.Fprintln(&out, s.run(who, words(rest)))
			}
			s.check()
			return out.String()
		})
		s.t = t
		s.replays()
		if *rewriteLogs {
			s.writeLog("v1-checkpoints-" + filepath.Base(file))
		}
	})
}

type ckptScript struct {
	*bench
	sessions map[string]*client
	run1     uint64 // the run's number, once it is known
	job      *wire.Job
	last     *wire.MetaRequest // of the line before, for `again`
	lastBy   *client
	// chunks makes the stripe of each file; nil: it is at nvme on three devices.
	chunks func(id, size uint64) *wire.Stripe
}

func (s *ckptScript) session(name string) *client {
	c := s.sessions[name]
	if c == nil {
		c = s.open(nil)
		s.sessions[name] = c
	}
	return c
}

func (s *ckptScript) key(w map[string]string) *wire.StepKey {
	attempt, step, _ := strings.Cut(w["step"], "/")
	return &wire.StepKey{Run: s.run1, Attempt: uint32(num(attempt)), Step: num(step)}
}

// run carries out one line and returns its transcript.
func (s *ckptScript) run(who string, w map[string]string) string {
	verb, arg, _ := strings.Cut(w[""], " ")
	switch who {
	case "tick":
		for n := num(w[""]); n > 0; n -= min(n, 1000) {
			s.tick(min(n, 1000))
		}
		return "ok"
	case "silent":
		steps, _, err := ckpt.SilentSteps(s.m.View(s.kv), nil, 10)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(len(steps), " silent ") + outcome(s.apply(&statepb.Command{Op: &statepb.Command_AbortSteps{AbortSteps: &statepb.AbortSteps{Steps: steps}}}).Response)
	case "expire":
		return outcome(s.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{s.sessions[w[""]].id}}}}).Response)
	case "run":
		return s.leaderJobs()
	case "links":
		return s.links()
	case "claims":
		return fmt.Sprintf("%d claims", s.claims())
	case "retain":
		return s.retain()
	case "again":
		return s.show(s.lastBy.send(s.last).Response)
	}
	c := s.session(who)
	if req := s.request(c, verb, arg, w); req != nil {
		s.last, s.lastBy = c.request(req), c
		return s.show(s.lastBy.send(s.last).Response)
	}
	return s.query(c, verb, w)
}

// request makes a line's mutation; nil if the line has none.
func (s *ckptScript) request(c *client, verb, arg string, w map[string]string) *wire.MetaRequest {
	rank := uint32(num(w["rank"]))
	switch verb {
	case "open":
		return &wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{Parent: c.root, Name: arg, Launch: w["launch"], Job: w["job"],
			Restart: num(w["restart"]), Takeover: w["takeover"] != "", ReadOnly: w["ro"] != ""}}}
	case "begin":
		op := &wire.BeginStep{Key: s.key(w), Rank: rank, World: uint32(num(w["world"])), SealTimeoutMillis: num(w["timeout"]), Bytes: num(w["bytes"])}
		if w["level"] == "nvme" {
			op.Level = uint32(moraine.NVMe)
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: op}}
	case "seal":
		digest := sha256.Sum256([]byte(w["digest"]))
		op := &wire.SealPart{Key: s.key(w), Rank: rank, Digest: digest[:], Protects: 2}
		if w["files"] != "none" {
			op.Files = []*wire.PartFile{s.file(c, fmt.Sprintf("part-%d%s", rank, w["suffix"]), 100)}
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: op}}
	case "claim":
		op := &wire.ClaimSlices{Key: s.key(w), Rank: rank}
		for _, g := range strings.FieldsFunc(w["groups"], comma) {
			id := sha256.Sum256([]byte(g))
			op.Groups = append(op.Groups, id[:wire.ClaimBytes-len(w["short"])])
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_ClaimSlices{ClaimSlices: op}}
	case "quota":
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: s.run1, Bytes: num(arg)}}}
	case "lease":
		return nil
	case "commit":
		op := &wire.CommitStep{Key: s.key(w), Job: s.job.GetId(), LeaseEpoch: s.job.GetLeaseEpoch(), Error: w["error"]}
		if w["epoch"] != "" {
			op.LeaseEpoch = num(w["epoch"])
		}
		if op.Error == "" && w["index"] != "none" {
			op.Index = s.file(c, "index", 50)
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: op}}
	case "finish":
		return &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: s.job.GetId(), LeaseEpoch: s.job.GetLeaseEpoch(), Error: w["error"], Final: w["final"] != ""}}}
	case "abort":
		return &wire.MetaRequest{Op: &wire.MetaRequest_AbortStep{AbortStep: &wire.AbortStep{Key: s.key(w), Reason: w["reason"]}}}
	case "rm":
		return &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{Key: s.key(w), Force: w["force"] != ""}}}
	case "mark":
		marks := map[string]wire.StepMark{"": 0, "none": 1, "healthy": 2, "quarantined": 3}
		op := &wire.MarkStep{Key: s.key(w), Rise: w["rise"] != "", Mark: marks[w["as"]], AddTags: strings.FieldsFunc(w["tag"], comma), RemoveTags: strings.FieldsFunc(w["untag"], comma)}
		if note, ok := w["note"]; ok {
			op.Note = &note
		}
		if pin, ok := w["pin"]; ok {
			op.Pinned = proto.Bool(pin == "yes")
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_MarkStep{MarkStep: op}}
	case "policy":
		op := &wire.SetPolicy{Inode: s.run1, Policy: &wire.Policy{Checkpoint: &wire.CheckpointPolicy{}}}
		for l := moraine.Memory; l <= moraine.Object; l++ {
			if rule, ok := w[l.String()]; ok {
				op.Policy.Checkpoint.Levels = append(op.Policy.Checkpoint.Levels, levelPolicy(l, rule))
			}
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: op}}
	case "hold":
		return &wire.MetaRequest{Op: &wire.MetaRequest_LeaseStep{LeaseStep: &wire.LeaseStep{Key: s.key(w)}}}
	case "done":
		return &wire.MetaRequest{Op: &wire.MetaRequest_ReleaseStep{ReleaseStep: &wire.ReleaseStep{Key: s.key(w)}}}
	case "unlink", "rmdir":
		dir, name, _ := strings.Cut(arg, ":")
		return &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.walk("/r/" + dir).GetWalk().GetAttr().GetInode(), Name: name, Directory: verb == "rmdir"}}}
	case "fix":
		op := &wire.ResolveStep{Run: s.run1, Attempt: uint32(num(w["attempt"])), Fix: true, Level: uint32(num(w["level"])), Step: num(w["exact"]), Exact: w["exact"] != "", Tag: w["tag"], Healthy: w["healthy"] != ""}
		return &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: op}}
	case "close":
		return &wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}
	case "mkdir":
		return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: s.run1, Name: arg, Type: wire.FileType_FILE_TYPE_DIRECTORY}}}
	case "rmtree":
		dir, name, _ := strings.Cut(arg, "/")
		return &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: c.walk("/r/" + dir).GetWalk().GetAttr().GetInode(), Name: name, Force: w["force"] != ""}}}
	}
	return nil
}

// file makes an unlinked file of the session with one extent; a session that
// is over names one that is none of its.
func (s *ckptScript) file(c *client, name string, size uint64) *wire.PartFile {
	resp := c.create(&wire.Create{Parent: c.root, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})
	if kind(resp) == moraine.SessionExpired.String() {
		return &wire.PartFile{Inode: c.root, Name: name}
	}
	attr := s.ok(resp).GetEntry().GetAttr()
	id := c.grant(0, 1)
	of := stripe(id, size, 1, 2, 3)
	if s.chunks != nil {
		of = s.chunks(id, size)
	}
	s.ok(c.commit(&wire.Commit{Inode: attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{of}, Extents: []*wire.Extent{extent(0, size, id, 0)}}))
	return &wire.PartFile{Inode: attr.Inode, Name: name, Size: size, Crc: 7}
}

func (s *ckptScript) query(c *client, verb string, w map[string]string) string {
	switch verb {
	case "lease":
		resp := s.as("m1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{Host: "m1",
			Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_COMMIT_STEP}, Max: 1}}})
		if jobs := resp.GetJobs().GetJobs(); len(jobs) > 0 {
			s.job = jobs[0]
			return fmt.Sprintf("%s epoch %d attempts %d", s.job.Subject, s.job.LeaseEpoch, s.job.Attempts)
		}
		return outcome(resp) + ": none"
	case "get":
		return s.show(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: s.key(w)}}}))
	case "before":
		op := &wire.ResolveStep{Run: s.run1, Attempt: uint32(num(w["attempt"])), Before: s.key(w)}
		return s.show(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: op}}))
	case "resolve":
		op := &wire.ResolveStep{Run: s.run1, Attempt: uint32(num(w["attempt"])), Level: uint32(num(w["level"])), Step: num(w["exact"]), Exact: w["exact"] != "", Tag: w["tag"], Healthy: w["healthy"] != ""}
		return s.show(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: op}}))
	case "steps":
		resp := c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: s.run1, All: w["all"] != "", Limit: uint32(num(w["limit"])),
			AfterAttempt: s.key(w).Attempt, AfterStep: s.key(w).Step}}})
		var out []string
		for _, st := range resp.GetSteps().GetSteps() {
			out = append(out, fmt.Sprintf("%d/%d:%s", st.Key.Attempt, st.Key.Step, stepState(st)))
		}
		if resp.GetSteps().GetMore() {
			out = append(out, "...")
		}
		return outcome(resp) + " " + orNothing(out)
	case "parts":
		resp := c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListParts{ListParts: &wire.ListParts{Key: s.key(w)}}})
		var out []string
		for _, p := range resp.GetParts().GetParts() {
			out = append(out, fmt.Sprintf("%d:%s", p.Rank, hex.EncodeToString(p.Digest[:2])))
			for _, f := range p.Files {
				out = append(out, fmt.Sprintf("%s(%d)", f.Name, f.Size))
			}
		}
		return outcome(resp) + " " + orNothing(out)
	case "runs":
		resp := c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListRuns{ListRuns: &wire.ListRuns{}}})
		var out []string
		for _, r := range resp.GetRuns().GetRuns() {
			out = append(out, showRun(r))
		}
		return outcome(resp) + " " + orNothing(out)
	}
	return "unknown verb " + verb
}

func comma(r rune) bool { return r == ',' }

func stepState(st *wire.Step) string {
	return strings.ToLower(strings.TrimPrefix(st.State.String(), "STEP_STATE_"))
}

func showRun(r *wire.Run) string {
	out := fmt.Sprintf("%s attempt %d launch %s committed %d", r.Name, r.Attempt, r.Launch, r.Committed)
	if r.Resolved {
		out += fmt.Sprintf(" from %d/%d", r.Parent.GetAttempt(), r.Parent.GetStep())
	}
	return out
}

// show is a response in words.
func (s *ckptScript) show(resp *wire.MetaResponse) string {
	switch {
	case resp.GetError() != nil:
		return outcome(resp)
	case resp.GetRun() != nil:
		s.run1 = resp.GetRun().GetRun().GetId()
		return fmt.Sprintf("attempt %d of %s", resp.GetRun().Attempt, showRun(resp.GetRun().Run))
	case resp.GetClaims() != nil:
		return fmt.Sprintf("ranks %d", resp.GetClaims().GetRanks())
	case resp.GetStep() != nil:
		st := resp.GetStep().Step
		out := fmt.Sprintf("%d/%d %s %d of %d", st.Key.Attempt, st.Key.Step, stepState(st), st.Sealed, st.World)
		if len(st.Missing) > 0 {
			out += fmt.Sprintf(" missing %v", st.Missing)
		}
		if st.Reason != "" {
			out += fmt.Sprintf(" (%s)", st.Reason)
		}
		if st.Path != "" {
			out += fmt.Sprintf(" %s %s %d bytes protects %d", st.Path, moraine.Level(st.Level), st.Bytes, st.Protects)
		}
		if st.Mark != 0 || st.Pinned || len(st.Tags) > 0 {
			out += fmt.Sprintf(" %s %q pinned %t tags %v", strings.ToLower(strings.TrimPrefix(st.Mark.String(), "STEP_MARK_")), st.Note, st.Pinned, st.Tags)
		}
		return out
	}
	return "ok"
}

// claims counts the claims of all steps.
func (s *ckptScript) claims() (n int) {
	for _, p := range s.kv.Pairs() {
		if p.Key[2] == record.TabClaim {
			n++
		}
	}
	return n
}

// links shows what is in the run's directory.
func (s *ckptScript) links() string {
	resp, err := s.m.Read(s.kv, &statepb.Caller{Node: s.node}, &wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: s.run1}}})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, e := range resp.GetReadDir().GetEntries() {
		if e.Attr.Type == wire.FileType_FILE_TYPE_SYMLINK {
			out = append(out, e.Name+"->"+e.Attr.Target)
			continue
		}
		out = append(out, e.Name+"/")
	}
	return orNothing(out)
}

func (s *ckptScript) leaderJobs() string {
	for n := 0; ; n++ {
		jobs, err := jobs.PendingJobs(s.m.View(s.kv), []wire.JobKind{wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_DROP_TABLES}, 10)
		if err != nil {
			return err.Error()
		}
		if len(jobs) == 0 {
			c, _ := kvtx.ReadCounters(s.m.View(s.kv))
			return fmt.Sprintf("%d inodes, %d stripes", c.Inodes, c.Stripes)
		}
		s.ok(s.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: jobs[0].Id, Limit: 4}}}).Response)
	}
}
