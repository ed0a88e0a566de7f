package lint

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"
)

// source has the types of packages of this module, from their source. It knows nothing of other
// modules, and leaves errors in what uses them: so it needs no build and no library.
type source struct {
	fset *token.FileSet
	done map[string]*types.Package
}

func newSource() *source { return &source{token.NewFileSet(), map[string]*types.Package{}} }

// Import implements types.Importer.
func (s *source) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if p := s.done[path]; p != nil {
		return p, nil
	}
	if path != module && !strings.HasPrefix(path, module+"/") {
		p := types.NewPackage(path, filepath.Base(path))
		p.MarkComplete()
		s.done[path] = p
		return p, nil
	}
	dir := filepath.Join(root, strings.TrimPrefix(path, module))
	b, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range b.GoFiles {
		f, err := parser.ParseFile(s.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return s.check(path, files)
}

func (s *source) check(path string, files []*ast.File) (*types.Package, error) {
	var failed error
	conf := types.Config{Importer: s, IgnoreFuncBodies: true, FakeImportC: true, Error: func(err error) {
		// What is of another module has no type here.
		if strings.Contains(err.Error(), "import cycle") {
			failed = err
		}
	}}
	p, _ := conf.Check(path, s.fset, files, nil) // see Error
	if failed != nil {
		return nil, fmt.Errorf("%s: %w", path, failed)
	}
	s.done[path] = p
	return p, nil
}

// TestInternalsAreFound has one declaration that shows a hidden type and one that does not, of each kind.
func TestInternalsAreFound(t *testing.T) {
	s := newSource()
	of := func(path, text string) *types.Package {
		t.Helper()
		f, err := parser.ParseFile(s.fset, path+".go", text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.check(path, []*ast.File{f})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	of(messages, "package wire\ntype Attr struct{}\ntype Kind int\nvar X Attr")
	of(module+"/internal/x", "package x\ntype T struct{}\nfunc (T) M() {}\ntype I interface{ N() }\ntype Int = int\nfunc F() T { return T{} }")
	of(module+"/other", "package other\ntype O struct{}")
	pkg := of(module+"/a", `package a
import (
	"time"
	"`+module+`/internal/x"
	"`+module+`/other"
	w "`+module+`/transport/wire"
)
type A struct{ F *w.Attr; g x.T; T time.Time; O other.O }
type B struct{ f *w.Attr }
type C struct{ x.T }
type d struct{ F x.T }
type E = x.T
type F = E
type G interface{ M(w.Attr); m(w.Attr) }
type H interface{ x.I }
type I map[string][]*w.Attr
type J map[x.T]bool
type K struct{ d }
type k struct{}
func (k) M() x.T { return x.F() }
type L struct{ k }
type N func(yield func(*w.Attr) bool)
type P[T x.I] struct{ v T }
type Q struct{ P[int] }
type R struct{ Next *R; B; F func() d }
func S() d { return d{} }
func T() *k { return nil }
func U() x.Int { return 0 }
func V[T x.I](T) {}
func W(B) other.O { return other.O{} }
func y(x.T) {}
func (A) Y() chan x.T { return nil }
func (A) y() chan x.T { return nil }
func (b *B) Z() (int, *x.T) { return 0, nil }
type pair[T any] struct{ V T }
func Pair() pair[x.T] { return pair[x.T]{} }
func Plain() pair[int] { return pair[int]{} }
var AA, bb = w.X, w.X
const CC w.Kind = 1
var DD = x.F()
var EE []other.O`)
	names, _ := shown(pkg)
	want := "A.F A.Y AA B.Z C.T CC DD E F G H I J K.d L.M L.k N P Pair R.F R.Z S T U V"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("found\n%s, want\n%s", got, want)
	}
}
