package lint

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// bounds lists every channel of empty structs with a buffer, and every condition variable,
// of the shipped code: they are what a bounded resource can be built of beside
// internal/limit. The value says what bounds the wait. A new one needs a line here, and a
// wait that ends with the caller's patience: by limit.Resource.Wait, or by the caller's ctx.
var bounds = map[string]string{
	// Slots of a bounded resource.
	"metadata/propose.go ended":            "the one proposer waits, by its ctx; entries in flight end by the propose timeout",
	"metadata/raftstore/store.go inFlight": "limit.Resource",
	"transport/connect.go slots":           "limit.Resource",
	"transport/server.go slots":            "limit.Resource: each patience that passes is a log line, then the next connection waits on",
	"transport/serve.go slots":             "limit.Resource: the request is refused",
	"client/ckpt/resolve.go reads":         "ctx of the restore",
	"client/content.go slots":              "limit.Resource",
	"client/create.go slots":               "limit.Resource",
	"tiers/mover/lease.go slots":           "ctx of the mover: it is the loop that asks for jobs, nobody waits for it",
	// Turns: one at a time.
	"metadata/absence.go turn":        "the announcement's own time",
	"chunkserver/floor.go turn":       "ctx",
	"chunkserver/share.go turn":       "ctx, and the most that the caller allows",
	"chunkserver/neighbour.go turn":   "ctx",
	"client/content.go turn":          "limit.Resource; close of a file waits for those who have it, whose calls end by the patience",
	"client/extents.go loading":       "ctx",
	"client/grants.go renewing":       "ctx",
	"client/meta.go opening":          "ctx",
	"client/topology.go refreshing":   "ctx",
	"tiers/mover/mover.go m.turns[i]": "ctx of the job",
	"tiers/disk/sync.go token":        "one sync of the device: as long as the device takes, whose silence takes it out of service",
	// Signals: the sender never waits.
	"metadata/server.go diverged":             "signal",
	"metadata/raftstore/readbarrier.go wake":  "signal",
	"metadata/raftstore/transport.go changed": "signal",
	"chunkserver/device.go again":             "signal",
	"chunkserver/device.go settle":            "signal",
	"chunkserver/probe.go poke":               "signal",
	"chunkserver/scrubstate.go now":           "signal",
	"transport/call.go done":                  "signal",
	"client/report.go wake":                   "signal",
	"client/lookout.go wake":                  "signal",
	"client/cache.go doubted":                 "signal",
	"tiers/mover/lease.go report":             "signal",
	// Condition variables.
	"transport/goroutines.go g.idle": "goroutines that end: the server's Run waits for what it began",
	"tiers/mem/behind.go b.change":   "the one writer behind, for work",
}

// TestBoundedResourcesAreWaitedForWithPatience fails on a new way to wait for a bounded
// resource that bounds does not explain, and on a line of bounds that explains nothing.
func TestBoundedResourcesAreWaitedForWithPatience(t *testing.T) {
	used := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata" || rel == "integration" || rel == "cmd") {
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

// waits returns the names that buffered channels of empty structs and condition variables
// get in a file.
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
	fun := text(set, call.Fun)
	return fun == "sync.NewCond" || fun == "make" && len(call.Args) == 2 && text(set, call.Args[0]) == "chan struct{}"
}

func text(set *token.FileSet, n ast.Node) string {
	var b bytes.Buffer
	_ = printer.Fprint(&b, set, n) // a buffer takes everything
	return b.String()
}
