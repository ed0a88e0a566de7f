package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// maxMethods caps the methods that one type declares.
	maxMethods = 40
	// maxExports caps the functions, types, variables and constants that one package exports.
	maxExports = 60
)

// overCap is a type or package that is over its cap on purpose.
type overCap struct {
	Cap int    // it may have at most so many
	Why string // a sentence
}

// manyMethods lists the types over maxMethods.
var manyMethods = map[string]overCap{}

// manyExports lists the packages over maxExports.
var manyExports = map[string]overCap{
	".":                     {99, "It is the vocabulary of all packages, and most of it is constants: the kinds of errors, levels and limits."},
	"client":                {106, "A third of it is constants: the kinds and states of jobs, the types of inodes, the policies and events."},
	"client/ckpt":           {90, "A third of it is constants: the types of elements, the states and marks of steps, the bounds of parts."},
	"metadata/state/fleet":  {108, "It has a function for each command of hosts, devices, stripes, grants and repairs, and for each question of the leader about them; the repair queue could become a package."},
	"metadata/state/record": {330, "It is the stored format: a struct for each record with its codec, and a constant for each table, counter and state."},
	"transport":             {66, "A third of it is the kinds of frames and the roles of certificates, a constant each."},
}

// TestNoTypeHasTooManyMethods fails on a type with more than maxMethods methods of its own. Methods
// of embedded types do not count.
func TestNoTypeHasTooManyMethods(t *testing.T) {
	methods, _ := countNames(t)
	checkCaps(t, "methods", maxMethods, methods, manyMethods)
}

// TestNoPackageExportsTooMuch fails on a package that exports more than maxExports names. Packages
// for tests, generated code and commands do not count.
func TestNoPackageExportsTooMuch(t *testing.T) {
	_, exports := countNames(t)
	checkCaps(t, "exported names", maxExports, exports, manyExports)
}

// failer is what checkCaps needs of a test.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
}

// checkCaps compares counts with a cap and its exceptions.
func checkCaps(t failer, of string, limit int, counts map[string]int, over map[string]overCap) {
	t.Helper()
	for name, n := range counts {
		switch o, ok := over[name]; {
		case !ok && n > limit:
			t.Errorf("%s has %d %s, more than %d: move those that share state to a type or package of their own", name, n, of, limit)
		case ok && n > o.Cap:
			t.Errorf("%s has %d %s, more than the %d of its exception", name, n, of, o.Cap)
		}
	}
	for name, o := range over {
		if n := counts[name]; n <= limit {
			t.Errorf("%s has %d %s: it needs no exception any more", name, n, of)
		}
		if !strings.HasSuffix(o.Why, ".") {
			t.Errorf("the exception of %s gives no reason", name)
		}
	}
}

// countNames counts the methods of each type and the exported names of each package of the tree.
func countNames(t *testing.T) (methods, exports map[string]int) {
	t.Helper()
	methods, exports = map[string]int{}, map[string]int{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(root, file); !ast.IsGenerated(f) {
			count(path.Dir(filepath.ToSlash(rel)), f, methods, exports)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(methods) < 100 || len(exports) < 20 {
		t.Fatalf("only %d types with methods and %d packages were found", len(methods), len(exports))
	}
	return methods, exports
}

// count adds the names that a file of a folder declares.
func count(folder string, f *ast.File, methods, exports map[string]int) {
	exported := 0
	name := func(id *ast.Ident) {
		if id.IsExported() {
			exported++
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				name(d.Name)
			} else {
				methods[folder+"."+receiver(d.Recv.List[0].Type)]++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					name(spec.Name)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						name(id)
					}
				}
			}
		}
	}
	test := within(folder, "integration") || strings.HasSuffix(folder, "test")
	if !test && !within(folder, "cmd") && f.Name.Name != "main" {
		exports[folder] += exported
	}
}

// receiver returns the name of a method's type.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

// TestCapsCount counts a file with one of each kind of declaration.
func TestCapsCount(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "a.go", `package a
const A, b = 1, 2
var (
	C = 1
	d = 2
)
type E struct{}
type f[T any] struct{}
func G() {}
func h() {}
func (E) I() {}
func (*E) j() {}
func (*f[T]) K() {}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	methods, exports := map[string]int{}, map[string]int{}
	for _, folder := range []string{"x", "cmd/x", "integration/x", "xtest"} {
		count(folder, f, methods, exports)
	}
	if methods["x.E"] != 2 || methods["x.f"] != 1 {
		t.Errorf("methods: %v", methods)
	}
	if exports["x"] != 4 || len(exports) != 1 {
		t.Errorf("exports: %v", exports)
	}
}

// TestCapsFail has counts and exceptions of each kind, and expects the bad ones to fail.
func TestCapsFail(t *testing.T) {
	counts := map[string]int{"low": 2, "high": 3, "excused": 3, "grown": 5, "shrunk": 2}
	for name, want := range map[string]int{"low": 0, "high": 1, "excused": 0, "grown": 1, "shrunk": 1, "gone": 1, "without a reason": 2} {
		over := map[string]overCap{}
		switch name {
		case "excused", "grown", "shrunk", "gone":
			over[name] = overCap{4, "It is so."}
		case "without a reason":
			over[name] = overCap{4, ""}
		}
		var failed failures
		checkCaps(&failed, "names", 2, map[string]int{name: counts[name]}, over)
		if int(failed) != want {
			t.Errorf("%s: %d failures, want %d", name, failed, want)
		}
	}
}

// failures counts what a check reports.
type failures int

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { *f++ }
