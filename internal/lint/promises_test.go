package lint

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notPromised is the page of properties that a reader may not rely on. Its items
// need no tests.
const notPromised = "docs/semantics/not-promised.md"

var (
	// testName is how a promise names a test: `folder.TestName`.
	testName = regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9_]+)`")
	// anyTest is a test named in any way.
	anyTest = regexp.MustCompile(`Test[A-Z0-9_]`)
	// endOfItem is where the paragraphs of a list item end.
	endOfItem = regexp.MustCompile(`\n\n[^ ]`)
)

// TestPromisesHaveTests fails when a promise of docs/semantics names no test, or
// one that does not exist.
func TestPromisesHaveTests(t *testing.T) {
	tests, promises := testsInTree(t), 0
	for _, page := range append(promisePages(t), notPromised) {
		text := read(t, page)
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if !tests[m[1]+"."+m[2]] {
				t.Errorf("%s names %s.%s, which does not exist", page, m[1], m[2])
			}
		}
		if len(anyTest.FindAllString(text, -1)) != len(testName.FindAllString(text, -1)) {
			t.Errorf("%s names a test in another way than `folder.TestName`", page)
		}
		if page == notPromised {
			continue
		}
		for _, item := range strings.Split(text, "\n- ")[1:] {
			if end := endOfItem.FindStringIndex(item); end != nil {
				item = item[:end[0]]
			}
			promises++
			if !testName.MatchString(item) {
				t.Errorf("%s: no test holds %q", page, item)
			}
		}
	}
	if promises < 300 {
		t.Errorf("only %d promises were found", promises)
	}
}

// TestSemanticsAreIndexed compares docs/SEMANTICS.md with the pages of docs/semantics.
func TestSemanticsAreIndexed(t *testing.T) {
	index := read(t, "docs/SEMANTICS.md")
	for _, page := range append(promisePages(t), notPromised) {
		if !strings.Contains(index, "(semantics/"+filepath.Base(page)+")") {
			t.Errorf("docs/SEMANTICS.md lacks %s", page)
		}
	}
}

// maxSentence limits a sentence of the promises, in words.
const maxSentence = 40

// TestPromisesArePlain fails on a long sentence in docs/semantics, and on a word
// that the last table of docs/GLOSSARY.md replaces.
func TestPromisesArePlain(t *testing.T) {
	replaced, found := replacedWords(t), 0
	for _, page := range append(promisePages(t), notPromised, "docs/SEMANTICS.md") {
		for _, s := range sentences(read(t, page)) {
			found++
			if n := len(strings.Fields(s)); n > maxSentence {
				t.Errorf("%s: a sentence has %d words, at most %d: %q", page, n, maxSentence, s)
			}
			if word := replaced.FindString(s); word != "" {
				t.Errorf("%s: %q in %q: docs/GLOSSARY.md says what to write", page, word, s)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d sentences were found", found)
	}
}

// TestSentencesAreFound shows that the check of sentences sees each kind of them.
func TestSentencesAreFound(t *testing.T) {
	page := "# A page\n\nOne `a. B` here. Two.\n\n- **Three.** Four: five;\n  six (seven.) Eight\n  - nine\n\n  Tests: `a.TestB`.\n\n| ten | eleven |\n"
	want := []string{"One x here", "Two", "Three", "Four: five; six (seven", "Eight", "nine"}
	if got := sentences(page); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q, want %q", got, want)
	}
}

var (
	// codeSpan is a name or a command, which counts as one word.
	codeSpan = regexp.MustCompile("`[^`]*`")
	// testList is the list of names at the end of a promise.
	testList = regexp.MustCompile("Tests?:\\s+(`[^`]*`,?\\s*)+\\.")
	// target is the target of a link.
	target = regexp.MustCompile(`\]\([^)]*\)`)
	// block is the beginning of a paragraph or list item.
	block = regexp.MustCompile(`\n\s*\n|\n\s*- `)
	// stop is the end of a sentence.
	stop = regexp.MustCompile(`[.!?]\)?\**(\s+|$)`)
)

// sentences returns the sentences of a page, without its headings, tables and
// lists of tests.
func sentences(page string) []string {
	page = fenced.ReplaceAllString(page, "")
	page = codeSpan.ReplaceAllString(testList.ReplaceAllString(page, ""), "x")
	var found []string
	for _, b := range block.Split(target.ReplaceAllString(page, ""), -1) {
		b = strings.TrimPrefix(strings.TrimSpace(b), "- ")
		if strings.HasPrefix(b, "#") || strings.HasPrefix(b, "|") {
			continue
		}
		b = strings.ReplaceAll(strings.ReplaceAll(b, "*", ""), "[", "")
		for _, s := range stop.Split(strings.Join(strings.Fields(b), " "), -1) {
			if s != "" {
				found = append(found, s)
			}
		}
	}
	return found
}

// row is a row of the glossary's last table, with its left column.
var row = regexp.MustCompile(`(?m)^\| ([^|]+) \|`)

// replacedWords matches the words that the glossary replaces everywhere. It leaves
// out those that the glossary replaces in one meaning only, in parentheses.
func replacedWords(t *testing.T) *regexp.Regexp {
	t.Helper()
	_, table, found := strings.Cut(read(t, "docs/GLOSSARY.md"), "\n## Words that the tree used before")
	if !found {
		t.Fatal("docs/GLOSSARY.md has no table of replaced words")
	}
	var words []string
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		if m[1] == "not" || m[1] == "hold" || strings.ContainsAny(m[1], "(-") {
			continue // the heading; "hold", which a promise may use; one meaning only
		}
		for _, w := range strings.Split(m[1], ",") {
			words = append(words, regexp.QuoteMeta(strings.TrimSpace(w)))
		}
	}
	if len(words) < 10 {
		t.Fatalf("docs/GLOSSARY.md replaces only %d words", len(words))
	}
	return regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)\b`)
}

// promisePages returns the pages of docs/semantics that contain promises.
func promisePages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, "docs/semantics/*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	var found []string
	for _, p := range pages {
		if page := "docs/semantics/" + filepath.Base(p); page != notPromised {
			found = append(found, page)
		}
	}
	return found
}

// declared is the beginning of a test.
var declared = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)

// testsInTree returns every test as folder.TestName.
func testsInTree(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, file := range files(t, "_test.go") {
		for _, m := range declared.FindAllStringSubmatch(read(t, file), -1) {
			found[filepath.ToSlash(filepath.Dir(file))+"."+m[1]] = true
		}
	}
	return found
}
