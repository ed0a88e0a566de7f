package agent_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenTranscript has whole dialogues of trainers with an agent. docs/formats/agent.md says how to
// read it. python/tests/test_transcript.py reads it too.
const goldenTranscript = "../client/ckpt/agentproto/testdata/transcript.txt"

// event is one line of the transcript.
type event struct {
	line int
	conn string
	// kind is connects, >, <, writes, reads or closes.
	kind string
	// prefix is the length of a frame as the transcript has it, files how many descriptors go with it.
	prefix string
	files  int
	body   string
	// at is a place in the slot, data what is there.
	at   int64
	data []byte
}

// dialogue is one part of the transcript: what one trainer does.
type dialogue struct {
	speaker, title string
	events         []event
}

// readTranscript reads the golden file.
func readTranscript(t *testing.T) (out []dialogue) {
	t.Helper()
	text, err := os.ReadFile(goldenTranscript)
	require.NoError(t, err)
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "== "):
			speaker, title, found := strings.Cut(line[3:], ": ")
			require.True(t, found, "line %d", i+1)
			out = append(out, dialogue{speaker: speaker, title: title})
		default:
			e, err := parseEvent(line)
			require.NoError(t, err, "line %d", i+1)
			e.line = i + 1
			d := &out[len(out)-1]
			d.events = append(d.events, e)
		}
	}
	return out
}

func parseEvent(line string) (e event, err error) {
	word := strings.SplitN(line, " ", 5)
	if len(word) < 2 {
		return e, fmt.Errorf("%q is no event", line)
	}
	e.conn, e.kind = word[0], word[1]
	switch {
	case (e.kind == "connects" || e.kind == "closes") && len(word) == 2:
	case (e.kind == ">" || e.kind == "<") && len(word) == 5:
		e.prefix, e.body = word[2], word[4]
		e.files, err = strconv.Atoi(word[3])
	case (e.kind == "writes" || e.kind == "reads") && len(word) == 4:
		if e.at, err = strconv.ParseInt(word[2], 10, 64); err == nil {
			e.data, err = hex.DecodeString(word[3])
		}
	default:
		err = fmt.Errorf("%q is no event", line)
	}
	return e, err
}

// placeholder is a value that varies: {{NAME}}.
var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

// varies is what a placeholder stands for: a number, a word, or the inside of a string.
const varies = `[^",\[\]{}]+`

// bindings are the values of the placeholders of a dialogue.
type bindings map[string]string

// fill replaces the placeholders of a body. All must have a value.
func (b bindings) fill(body string) (string, error) {
	var err error
	out := placeholder.ReplaceAllStringFunc(body, func(p string) string {
		value, ok := b[p[2:len(p)-2]]
		if !ok {
			err = fmt.Errorf("%s has no value yet", p)
		}
		return value
	})
	return out, err
}

// match compares a body with that of a frame, and gives the placeholders that have none yet their values.
func (b bindings) match(body, got string) error {
	var names []string
	var pattern strings.Builder
	at := 0
	for _, p := range placeholder.FindAllStringSubmatchIndex(body, -1) {
		pattern.WriteString(regexp.QuoteMeta(body[at:p[0]]))
		pattern.WriteString("(" + varies + ")")
		names = append(names, body[p[2]:p[3]])
		at = p[1]
	}
	pattern.WriteString(regexp.QuoteMeta(body[at:]))
	found := regexp.MustCompile("^" + pattern.String() + "$").FindStringSubmatch(got)
	if found == nil {
		return fmt.Errorf("it is\n%s", b.hide(got))
	}
	values := maps.Clone(b)
	for i, name := range names {
		if known, ok := values[name]; ok && name != "_" && known != found[i+1] {
			return fmt.Errorf("{{%s}} is %s, and was %s", name, found[i+1], known)
		}
		values[name] = found[i+1]
	}
	delete(values, "_") // it stands for any value
	maps.Copy(b, values)
	return nil
}

// hide puts the placeholders into a body whose values they have, for the person who compares.
func (b bindings) hide(body string) string {
	for _, name := range slices.Sorted(maps.Keys(b)) {
		body = strings.ReplaceAll(body, `"`+b[name]+`"`, `"{{`+name+`}}"`)
	}
	return body
}

// check compares a frame with the event, which has its bytes. The length of a frame with placeholders is
// not in the transcript.
func (e event) check(b bindings, frame []byte, files int) error {
	prefix := hex.EncodeToString(frame[:4])
	if placeholder.MatchString(e.body) {
		prefix = strings.Repeat(".", 8)
	}
	if err := b.match(e.body, string(frame[4:])); err != nil {
		return err
	}
	if prefix != e.prefix || files != e.files {
		return fmt.Errorf("it begins with %s and has %d descriptors", prefix, files)
	}
	return nil
}

// frameOf puts the length before a body.
func frameOf(body string) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// TestTheTranscriptIsMatched: a transcript that differs in any of these ways is not that of the dialogue.
func TestTheTranscriptIsMatched(t *testing.T) {
	e, err := parseEvent(`A < ........ 1 {"begin":{"slot":"{{slot}}","bytes":8,"n":{{_}}}}`)
	require.NoError(t, err)
	b := bindings{}
	first := frameOf(`{"begin":{"slot":"s1","bytes":8,"n":3}}`)
	require.NoError(t, e.check(b, first, 1))
	require.Equal(t, bindings{"slot": "s1"}, b)
	require.NoError(t, e.check(b, frameOf(`{"begin":{"slot":"s1","bytes":8,"n":44}}`), 1))
	require.Error(t, e.check(b, first, 0), "without its descriptor")
	require.Error(t, e.check(b, frameOf(`{"begin":{"slot":"s2","bytes":8,"n":3}}`), 1), "another slot")
	require.Error(t, e.check(b, frameOf(`{"begin":{"slot":"s1","bytes":9,"n":3}}`), 1), "another length")
	require.Error(t, e.check(b, frameOf(`{"begin":{"bytes":8,"slot":"s1","n":3}}`), 1), "another order")
	require.Error(t, e.check(b, frameOf(`{"begin":{"slot":"s1","bytes":8,"n":3,"m":4}}`), 1), "a field more")
	sent, err := b.fill(`{"slot":"{{slot}}"}`)
	require.NoError(t, err)
	require.Equal(t, `{"slot":"s1"}`, sent)
	_, err = b.fill(`{{other}}`)
	require.Error(t, err)

	e, err = parseEvent(`A > 02000000 0 {}`)
	require.NoError(t, err)
	require.NoError(t, e.check(b, frameOf(`{}`), 0))
	e.prefix = "00000002"
	require.Error(t, e.check(b, frameOf(`{}`), 0), "another byte order")
	for _, bad := range []string{"A", "A says", `A > 02000000 {}`, "A writes 0 xx", "A writes x 00", "A closes now"} {
		_, err := parseEvent(bad)
		require.Error(t, err, bad)
	}
}
