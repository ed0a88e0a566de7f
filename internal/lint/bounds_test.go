package lint

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bounds lists all code from which a limited resource can be built, other than
// internal/limit, in the shipped code. That is every channel of empty structs with
// a buffer, and every other channel whose buffer does not have exactly one place.
// It is also every condition variable, every errgroup with a limit, whose Go waits,
// and every weighted semaphore. A channel with a place for one value is an answer,
// or the newest of something. Only numbers and truth values could be a turn. The
// value of an entry says what limits the wait. A new one needs a line here, and a
// wait that ends with the caller's patience: by limit.Resource.Wait, or by the
// caller's ctx.
var bounds = map[string]string{
	// Slots of a limited resource.
	"metadata/propose.go ended":            "the one proposer waits; its callers by limit.Resource, in wait: an entry in flight ends with its commit or the leadership",
	"metadata/raftstore/store.go inFlight": "limit.Resource: each patience that passes is a log line, then the proposer waits on; its callers give up in proposer.wait",
	"transport/connect.go slots":           "limit.Resource",
	"transport/server.go slots":            "limit.Resource: each patience that passes is a log line, then the next connection waits on",
	"transport/serve.go slots":             "limit.Resource: the request is refused",
	"client/ckpt/stream.go arrivals":       "ctx of the caller: the reader ahead waits for the caller's writer",
	"client/ckpt/fold.go readers":          "ctx of the caller: the reads of its own headers have them, each by the client's patience",
	"client/ckpt/fold.go ahead":            "ctx of the caller: the reader ahead waits for the merge, which only computes",
	"client/ckpt/indexwrite.go blocks":     "the caller, which takes each block, or ends it",
	"client/ckpt/files.go slots":           "ctx of the restore: its own reads have the places, each by the client's patience",
	"client/content.go slots":              "limit.Resource",
	"client/create.go slots":               "limit.Resource",
	"mover/lease.go slots":                 "ctx of the mover: it is the loop that asks for jobs, nobody waits for it",
	"metadata/propose.go queue":            "limit.Resource, in enqueue",
	"chunkserver/piececache.go asks":       "no wait: a file that finds no place is requested at its next read",
	"chunkserver/objectcheck.go todo":      "nobody waits: an object that finds no place is handed out again",
	"chunkserver/objectcheck.go found":     "ctx of the server: only its own goroutines that compare objects wait, and reads do not",
	"fuse/atime.go ready":                  "no wait: a place that is taken has the reads sent already",
	"fuse/prefetch.go slots":               "a prefetch waits for others, until its file is closed; no call waits for it",
	"fuse/observe/log.go lines":            "no wait: a line that finds no place is left out, and counted",
	"fuse/observe/log.go reopen":           "no wait: a place that is taken reopens the log already",
	"chunkserver/suspects.go queue":        "no wait: a report that finds no place is dropped, and the reader reports again",
	"internal/limit/limit.go sem":          "limit.Resource: it is what all others use",
	"tiers/mem/arena.go first":             "limit.Resource, in Get",

	"client/internal/nodecache/cache.go queue":    "no wait: bytes that find no place are not cached",
	"client/internal/session/listahead.go wanted": "no wait: a directory that finds no place is listed after a later look-up",
	"client/internal/session/walkahead.go wanted": "no wait: one place for each listing that may run",

	// Answers: as many places as senders, which never wait.
	"transport/server.go failed":                     "one place for each listener",
	"client/internal/stripeio/gather.go results":     "one place for each requested chunk",
	"client/internal/stripeio/put.go results":        "one place for each chunk that is put",
	"client/internal/stripeio/striperead.go results": "one place for each chunk that is wanted",
	"metadata/raftstore/store.go notify":             "raft's changes of leadership: the follower of them takes each at once",
	"metadata/metadatatest/group.go changes":         "a group for tests: changes of leadership",
	// Groups: Go waits for a task to end, and each task ends with the caller's ctx.
	"fuse/table.go g.SetLimit":                           "each flush ends by the client's patience for its stripes and for its commits",
	"fuse/restore.go g.SetLimit":                         "each open ends by the client's patience",
	"fuse/pages.go g.SetLimit":                           "a drop waits for reads of the file, each by the client's patience; who waits for the drop gives up after a second",
	"chunkserver/probe.go g.SetLimit":                    "each probe has a timeout",
	"client/ckpt/flush.go g.SetLimit":                    "ctx of the run; each stripe by the client's patience",
	"client/ckpt/stage.go g.SetLimit":                    "copies in memory: nothing to wait for",
	"agent/sums.go g.SetLimit":                           "sums of memory: nothing to wait for",
	"client/ckpt/agentread.go g.SetLimit":                "copies in memory: nothing to wait for",
	"client/ckpt/readplan.go g.SetLimit":                 "ctx of the caller; each read by the client's patience",
	"client/ckpt/copies.go g.SetLimit":                   "ctx of the caller; each read by the client's patience",
	"client/ckpt/together.go g.SetLimit":                 "ctx of the caller; each read by the client's patience",
	"client/ckpt/verify.go g.SetLimit":                   "ctx of the caller; each read by the client's patience",
	"client/ckpt/adoptedhf.go g.SetLimit":                "ctx of the caller; each read by the client's patience",
	"client/internal/stripeio/stage.go group.SetLimit":   "ctx of the job; each stripe by the client's patience",
	"client/internal/stripeio/located.go group.SetLimit": "the client's patience, of the read as a whole",
	"client/handleread.go group.SetLimit":                "the client's patience, of the read as a whole",
	"internal/fsck/fsck.go g.SetLimit":                   "ctx of the command",
	"mover/repair.go g.SetLimit":                         "ctx of the job",
	"tiers/mem/map_linux.go g.SetLimit":                  "page faults of the start: nothing to wait for",
	"s3/delete.go g.SetLimit":                            "each delete by the client's patience; a client that goes does not end them",
	// Turns: one at a time.
	"metadata/fleet/absence.go turn":        "the announcement's own time, by limit.Resource",
	"chunkserver/floor.go turn":             "limit.Resource, in admit; ctx of work without a request",
	"chunkserver/share.go turn":             "limit.Resource, in admit, and the most that the caller allows",
	"chunkserver/neighbour.go turn":         "limit.Resource, in admit; ctx of work without a request",
	"client/internal/stripeio/turn.go Slot": "limit.Resource; close of a file waits for those who have it, whose calls end by the patience",
	"mover/mover.go m.early":                "it does not wait: the job is tried again",
	"mover/mover.go m.turns[i]":             "ctx of the job",
	"tiers/disk/sync.go token":              "one sync of the device: as long as the device takes, whose silence takes it out of service",
	// Signals: the sender never waits.
	"metadata/server.go diverged":                    "signal",
	"metadata/raftstore/readbarrier.go wake":         "signal",
	"metadata/raftstore/transport.go changed":        "signal",
	"chunkserver/open.go again":                      "signal",
	"chunkserver/open.go settle":                     "signal",
	"chunkserver/probe.go poke":                      "signal",
	"chunkserver/scrubstate.go now":                  "signal",
	"transport/call.go done":                         "signal",
	"client/internal/stripeio/report.go wake":        "signal",
	"client/internal/delegation/desk.go send":        "signal",
	"client/internal/delegation/desk.go tend":        "signal",
	"client/internal/session/cache.go wake":          "signal",
	"client/internal/session/endpointhealth.go wake": "signal",
	"client/internal/session/cache.go doubted":       "signal",
	"client/client.go ready":                         "signal",
	"mover/lease.go report":                          "signal",

	"client/internal/nodecache/writer.go b.spent": "signal",

	// Condition variables.
	"transport/goroutines.go g.idle": "goroutines that end: the server's Run waits for what it began",
	"tiers/mem/behind.go b.change":   "the one writer behind, for work",
}

// unbounded lists the folders whose waits are not listed: commands, and what they and
// tests run clusters with, wait for processes that they started themselves.
var unbounded = []string{"cmd", "integration", "internal/bench", "internal/demo", "internal/devcluster", "internal/llama", "internal/netns"}

// TestBoundedResourcesAreWaitedForWithPatience fails on a new wait for a limited
// resource that has no line in bounds. It also fails on a line of bounds without
// such a wait.
func TestBoundedResourcesAreWaitedForWithPatience(t *testing.T) {
	used := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata" || slices.Contains(unbounded, rel)) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, name := range waits(set, f) {
			key := filepath.ToSlash(rel) + " " + name
			if used[key] = true; bounds[key] == "" {
				t.Errorf("%s is waited for in a way that bounds does not list: use internal/limit, or add it with what bounds the wait", key)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key := range bounds {
		if !used[key] {
			t.Errorf("bounds lists %s, which does not exist", key)
		}
	}
}

// waits returns the names in a file of everything from which a limited resource can
// be built.
func waits(set *token.FileSet, f *ast.File) (names []string) {
	named := func(name ast.Expr, value ast.Expr) {
		if call, ok := value.(*ast.CallExpr); ok && isWait(set, call) {
			names = append(names, text(set, name))
		}
	}
	var count int
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isWait(set, n) {
				count++
			}
			if isLimit(n) {
				count++
				names = append(names, text(set, n.Fun))
			}
		case *ast.KeyValueExpr:
			named(n.Key, n.Value)
		case *ast.AssignStmt:
			for i := range n.Rhs {
				if len(n.Lhs) == len(n.Rhs) {
					named(n.Lhs[i], n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			for i := range n.Values {
				named(n.Names[i], n.Values[i])
			}
		}
		return true
	})
	if count != len(names) {
		names = append(names, "(without a name)")
	}
	return names
}

func isWait(set *token.FileSet, call *ast.CallExpr) bool {
	switch fun := text(set, call.Fun); {
	case fun == "sync.NewCond" || fun == "semaphore.NewWeighted":
		return true
	case fun != "make" || len(call.Args) != 2:
		return false
	}
	element, isChannel := strings.CutPrefix(text(set, call.Args[0]), "chan ")
	return isChannel && (text(set, call.Args[1]) != "1" || slices.Contains(turns, element))
}

// turns are the element types of channels of one place that may be a turn.
var turns = []string{"struct{}", "bool", "int", "byte", "any"}

// isLimit reports whether a call limits the tasks of an errgroup.
func isLimit(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "SetLimit" && len(call.Args) == 1
}

func text(set *token.FileSet, n ast.Node) string {
	var b bytes.Buffer
	_ = printer.Fprint(&b, set, n) // a buffer accepts every write
	return b.String()
}

// TestEveryWaitIsSeen has one of each kind of wait, and of what is none.
func TestEveryWaitIsSeen(t *testing.T) {
	for code, want := range map[string]string{
		"x := make(chan struct{}, 1)": "x", "x := make(chan struct{}, n)": "x", "x := make(chan string, 8)": "x", "x := make(chan bool, 1)": "x",
		"x := make(chan []byte, cap)": "x", "x := sync.NewCond(&mu)": "x", "x := semaphore.NewWeighted(n)": "x", "g.SetLimit(4)": "g.SetLimit",
		"f(make(chan string, 8))": "(without a name)", "x := make(chan error, 1)": "", "x := make(chan string)": "", "x := make([]string, 8)": "",
	} {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, "a.go", "package a\nfunc a() { "+code+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(waits(set, f), " "); got != want {
			t.Errorf("%s: %q, want %q", code, got, want)
		}
	}
}
