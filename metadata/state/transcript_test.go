package state_test

import (
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// TestTranscripts replays testdata: each line is one command, and its outcome is the transcript.
// After each file the whole state is checked.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, file string) {
		s := &script{bench: newCluster(t, 6), sessions: map[string]*client{}, grants: map[string]uint64{}}
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			var out strings.Builder
			lines := strings.Split(d.Input, "\n")
			if d.Input == "" {
				lines = []string{""}
			}
			for _, line := range lines {
				fmt.Fprintln(&out, s.run(d, strings.Fields(line)))
			}
			return out.String()
		})
		s.t = t
		s.check()
		if *rewriteLogs {
			s.writeLog("v1-" + filepath.Base(file))
		}
	})
}

// script interprets a transcript.
type script struct {
	*bench
	sessions map[string]*client
	at       *client
	grants   map[string]uint64 // first number, by name
	last     uint64            // inode of the last removal
	reserved uint64            // the next inode number of a delegation
}

func (s *script) run(d *datadriven.TestData, args []string) string {
	switch d.Cmd {
	case "open":
		return s.runOpen(d)
	case "as":
		s.at = s.sessions[d.CmdArgs[0].Key]
		return s.do(args)
	case "expire":
		c := s.sessions[d.CmdArgs[0].Key]
		return outcome(s.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}).Response)
	case "tick":
		return outcome(s.apply(&statepb.Command{Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: 1000}}}).Response)
	case "jobs":
		return s.runJobs()
	case "counters":
		c, err := kvtx.ReadCounters(s.m.View(s.kv))
		if err != nil {
			s.t.Fatal(err)
		}
		return fmt.Sprintf("sessions %d inodes %d stripes %d pending %d", c.Sessions, c.Inodes, c.Stripes, c.PendingBytes)
	case "check":
		s.check()
		return "sound"
	}
	d.Fatalf(s.t, "unknown command")
	return ""
}

func (s *script) runOpen(d *datadriven.TestData) string {
	nonce := make([]byte, 16)
	copy(nonce, d.CmdArgs[0].Key)
	op := &wire.OpenSession{Node: s.node, Scope: "/", Nonce: nonce, ReadOnly: d.HasArg("ro"), Squash: d.HasArg("squash"), Leases: d.HasArg("leases")}
	d.MaybeScanArgs(s.t, "scope", &op.Scope)
	resp := s.as(s.node, "client", &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: op}})
	if resp.GetError() == nil {
		r := resp.GetSession()
		s.sessions[d.CmdArgs[0].Key] = &client{bench: s.bench, id: r.GetSession(), root: r.GetRoot()}
	}
	return outcome(resp)
}

func (s *script) runJobs() string {
	for n := 0; ; n++ {
		jobs, err := jobs.PendingJobs(s.m.View(s.kv), []wire.JobKind{wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_DROP_TABLES}, 100)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(jobs) == 0 {
			return fmt.Sprintf("no job left after %d pieces", n)
		}
		s.ok(s.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: jobs[0].Id, Limit: 20}}}).Response)
	}
}

// outcome is the text of a failure, or ok.
func outcome(resp *wire.MetaResponse) string {
	e := resp.GetError()
	if e == nil {
		return "ok"
	}
	if e.GetText() == "" {
		return moraine.Kind(e.GetKind()).String()
	}
	return moraine.Kind(e.GetKind()).String() + ": " + e.GetText()
}

// split walks to the parent of a path.
func (s *script) split(p string) (parent uint64, name string) {
	dir, name := path.Split(p)
	w := s.at.walk(dir)
	if w.GetError() != nil || !w.GetWalk().GetFound() {
		return 1 << 50, name // nothing has this number
	}
	return w.GetWalk().GetAttr().GetInode(), name
}

func (s *script) inode(p string) uint64 {
	w := s.at.read(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: p}}})
	return w.GetWalk().GetAttr().GetInode()
}

// do executes one line: a verb and its arguments.
func (s *script) do(args []string) string {
	c := s.at
	flag := func(name string) bool {
		for _, a := range args {
			if a == name {
				return true
			}
		}
		return false
	}
	switch args[0] {
	case "create-unlinked":
		resp := c.create(&wire.Create{Parent: s.inode(args[1]), Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})
		s.last = resp.GetEntry().GetAttr().GetInode()
		return outcome(resp)
	case "create", "mkdir", "symlink":
		parent, name := s.split(args[1])
		op := &wire.Create{Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: flag("excl")}
		switch args[0] {
		case "mkdir":
			op.Type, op.Mode = wire.FileType_FILE_TYPE_DIRECTORY, 0o755
			if len(args) > 2 {
				op.Tenant = strings.TrimPrefix(args[2], "tenant=")
			}
		case "symlink":
			op.Type, op.Target = wire.FileType_FILE_TYPE_SYMLINK, args[2]
		}
		return outcome(c.create(op))
	case "rename":
		from, name := s.split(args[1])
		to, newName := s.split(args[2])
		return outcome(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: from, Name: name,
			NewParent: to, NewName: newName, NoReplace: flag("no-replace"), Exchange: flag("exchange"), Keep: flag("keep")}}}))
	case "rm", "rmdir":
		parent, name := s.split(args[1])
		op := &wire.Remove{Parent: parent, Name: name, Directory: args[0] == "rmdir", Keep: flag("keep")}
		s.last = s.inode(args[1])
		return outcome(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: op}}))
	case "link":
		parent, name := s.split(args[2])
		return outcome(c.link(s.named(args[1]), parent, name))
	case "release":
		return outcome(c.release(s.last))
	case "set-xattr":
		op := &wire.SetXattr{Inode: s.inode(args[1]), Name: args[2], Create: flag("create"), Replace: flag("replace"), Remove: flag("remove")}
		if len(args) > 3 {
			op.Value = []byte(args[3])
		}
		return outcome(c.setXattr(op))
	case "xattr":
		return s.xattr(args)
	case "rmtree":
		parent, name := s.split(args[1])
		return outcome(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: parent, Name: name}}}))
	case "truncate":
		return outcome(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: s.inode(args[1]),
			Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: number(args[2])}}}))
	case "chown":
		return outcome(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: s.inode(args[1]),
			Valid: uint32(wire.SetAttrField_SET_ATTR_UID), Uid: uint32(number(args[2]))}}}))
	case "ls":
		return s.list(args[1])
	case "stat":
		return s.stat(args[1], flag("follow"))
	case "map":
		return s.extentMap(args[1])
	case "grant":
		resp := c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: s.inode(args[3]), Count: uint32(number(args[2]))}}})
		s.grants[args[1]] = resp.GetGrant().GetFirst()
		return outcome(resp)
	case "end-grant":
		return outcome(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: s.grants[args[1]]}}}))
	case "commit":
		return s.commit(args)
	case "clone":
		return s.clone(args)
	case "delegate", "end", "endall", "batch", "meets":
		return s.delegation(args)
	case "lock", "unlock":
		return s.lock(args)
	case "close":
		return outcome(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}))
	}
	s.t.Fatalf("unknown verb %q", args[0])
	return ""
}

// named is the inode at a path, or of the last removal.
func (s *script) named(p string) uint64 {
	if p == "last" {
		return s.last
	}
	return s.inode(p)
}

// xattr shows one extended attribute, or all names.
func (s *script) xattr(args []string) string {
	name := ""
	if len(args) > 2 {
		name = args[2]
	}
	resp := s.at.xattr(s.inode(args[1]), name)
	switch {
	case resp.GetError() != nil:
		return outcome(resp)
	case name == "":
		return orNothing(resp.GetXattr().GetNames())
	}
	return string(resp.GetXattr().GetValue())
}

func number(word string) uint64 {
	n, err := strconv.ParseUint(word, 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// commit PATH MODE GRANT+N:OFFSET:LENGTH... writes one new x3 stripe at each offset.
func (s *script) commit(args []string) string {
	op := &wire.Commit{Inode: s.inode(args[1]), Level: uint32(moraine.NVMe)}
	op.Mode = wire.CommitMode(wire.CommitMode_value["COMMIT_MODE_"+strings.ToUpper(args[2])])
	for _, a := range args[3:] {
		if gen, ok := strings.CutPrefix(a, "generation="); ok {
			op.ExpectGeneration = number(gen)
			continue
		}
		p := strings.Split(a, ":")
		name, n, _ := strings.Cut(p[0], "+")
		id := s.grants[name] + number(n)
		op.Stripes = append(op.Stripes, stripe(id, number(p[2]), 1, 2, 3))
		op.Extents = append(op.Extents, extent(number(p[1]), number(p[2]), id, 0))
	}
	resp := s.at.commit(op)
	if resp.GetError() != nil {
		return outcome(resp)
	}
	r := resp.GetCommit()
	return fmt.Sprintf("ok: size %d stored %d generation %d level %s protects %d degraded %d", r.Attr.Size, r.Attr.Stored,
		r.Attr.Generation&(1<<56-1), moraine.Level(r.Attr.Level), r.Protects, r.Degraded)
}

// clone PATH MODE SOURCE[:OFFSET:LENGTH[:GENERATION]]... writes ranges over a file. With PATH + it
// is a file without a name that then gets the last word as its name.
func (s *script) clone(args []string) string {
	op := &wire.Clone{Inode: s.named(args[1])}
	op.Mode = wire.CommitMode(wire.CommitMode_value["COMMIT_MODE_"+strings.ToUpper(args[2])])
	for _, a := range args[3:] {
		if gen, ok := strings.CutPrefix(a, "generation="); ok {
			op.ExpectGeneration = number(gen)
			continue
		}
		if p, ok := strings.CutPrefix(a, "as="); ok {
			parent, name := s.split(p)
			op.Link = &wire.LinkTarget{Parent: parent, Name: name}
			continue
		}
		p := strings.Split(a, ":")
		r := &wire.CloneRange{Inode: s.inode(p[0])}
		if len(p) > 1 {
			r.Offset, r.Length = number(p[1]), number(p[2])
		}
		if len(p) > 3 {
			r.Generation = 1<<56 | number(p[3])
		}
		op.Ranges = append(op.Ranges, r)
	}
	resp := s.at.clone(op)
	if resp.GetError() != nil {
		return outcome(resp)
	}
	a := resp.GetCommit().GetAttr()
	return fmt.Sprintf("ok: size %d stored %d generation %d level %s", a.Size, a.Stored, a.Generation&(1<<56-1), moraine.Level(a.Level))
}

// extentMap shows a file's extents, with stripe numbers relative to the first.
func (s *script) extentMap(p string) string {
	resp := s.at.extents(s.inode(p), 0, 0)
	if resp.GetError() != nil {
		return outcome(resp)
	}
	var out []string
	for _, e := range resp.GetExtents().GetExtents() {
		out = append(out, fmt.Sprintf("%d-%d:s%d+%d", e.Offset, e.Offset+e.Length, e.Stripe&0xffff, e.StripeOffset))
	}
	return orNothing(out)
}

func orNothing(words []string) string {
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, " ")
}

func (s *script) list(p string) string {
	resp := s.at.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: s.at.walk(p).GetWalk().GetAttr().GetInode()}}})
	if resp.GetError() != nil {
		return outcome(resp)
	}
	var out []string
	for _, e := range resp.GetReadDir().GetEntries() {
		switch e.Attr.Type {
		case wire.FileType_FILE_TYPE_DIRECTORY:
			out = append(out, e.Name+"/")
		case wire.FileType_FILE_TYPE_SYMLINK:
			out = append(out, e.Name+"->"+e.Attr.Target)
		default:
			out = append(out, e.Name)
		}
	}
	return orNothing(out)
}

func (s *script) stat(p string, follow bool) string {
	resp := s.at.read(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: p, Follow: follow}}})
	if resp.GetError() != nil {
		return outcome(resp)
	}
	w := resp.GetWalk()
	if !w.GetFound() {
		return fmt.Sprintf("missing: %q can be made", w.GetName())
	}
	a := w.GetAttr()
	return fmt.Sprintf("%s mode %o uid %d nlink %d size %d tenant %d", strings.ToLower(strings.TrimPrefix(a.Type.String(), "FILE_TYPE_")),
		a.Mode, a.Uid, a.Nlink, a.Size, a.Tenant)
}

// lock PATH OWNER START END [write] [flock] takes a lock, and unlock gives it back. The answer is the
// lock that excludes it.
func (s *script) lock(args []string) string {
	l := &wire.FileLock{Owner: number(args[2]), Start: number(args[3]), End: number(args[4]), Pid: 7}
	for _, a := range args[5:] {
		l.Write, l.Flock = l.Write || a == "write", l.Flock || a == "flock"
	}
	resp := s.at.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetLock{SetLock: &wire.SetLock{Inode: s.named(args[1]), Lock: l, Unlock: args[0] == "unlock"}}})
	by := resp.GetLock().GetConflict()
	if by == nil {
		return outcome(resp)
	}
	who := "?"
	for name, c := range s.sessions {
		if c.id == by.Session {
			who = name
		}
	}
	return fmt.Sprintf("owner %d of %s has %d-%d, write %t", by.Owner, who, by.Start, by.End, by.Write)
}
