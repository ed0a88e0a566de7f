package observe

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// notRequests are the methods of the server's interface that no program causes.
var notRequests = []string{"String", "SetDebug", "Forget", "Init", "OnUnmount"}

// TestEachRequestIsCounted: each method of the server's interface counts once, as one operation, and
// passes on the answer.
func TestEachRequestIsCounted(t *testing.T) {
	of := reflect.TypeFor[gofuse.RawFileSystem]()
	seen := map[string]bool{}
	for i := range of.NumMethod() {
		m := of.Method(i)
		if slices.Contains(notRequests, m.Name) {
			continue
		}
		o := New(nil, nil)
		var args []reflect.Value
		for a := range m.Type.NumIn() {
			in := m.Type.In(a)
			if in.Kind() == reflect.Pointer {
				args = append(args, reflect.New(in.Elem()))
				continue
			}
			args = append(args, reflect.Zero(in))
		}
		inner := gofuse.NewDefaultRawFileSystem()
		want := reflect.ValueOf(inner).MethodByName(m.Name).Call(args)
		got := reflect.ValueOf(Wrap(inner, o)).MethodByName(m.Name).Call(args)
		for r := range want {
			require.Equal(t, want[r].Interface(), got[r].Interface(), m.Name)
		}
		s := o.Snapshot()
		require.Len(t, s, 1, m.Name)
		for name, op := range s {
			require.EqualValues(t, 1, op.Count, m.Name)
			seen[name] = true
		}
	}
	require.Len(t, seen, int(operations), "each operation belongs to a method")
}

// fixed answers reads, writes and look-ups.
type fixed struct{ gofuse.RawFileSystem }

func (fixed) Read(_ <-chan struct{}, in *gofuse.ReadIn, _ []byte) (gofuse.ReadResult, gofuse.Status) {
	return gofuse.ReadResultData(make([]byte, in.Size)), gofuse.OK
}

func (fixed) Write(_ <-chan struct{}, _ *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	return uint32(len(data)), gofuse.OK
}

func (fixed) Lookup(_ <-chan struct{}, _ *gofuse.InHeader, name string, _ *gofuse.EntryOut) gofuse.Status {
	switch name {
	case "broken":
		return gofuse.EIO
	case "missing":
		return gofuse.ENOENT
	}
	return gofuse.OK
}

func (fixed) GetXAttr(<-chan struct{}, *gofuse.InHeader, string, []byte) (uint32, gofuse.Status) {
	return 0, gofuse.ENOTSUP
}

// TestBytesAndErrorsAreCounted: also by prometheus. A missing name or attribute is no error.
func TestBytesAndErrorsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := New(NewMetrics(reg), nil)
	fs := Wrap(fixed{gofuse.NewDefaultRawFileSystem()}, o)
	fs.GetXAttr(nil, &gofuse.InHeader{}, "security.selinux", nil)
	require.Zero(t, o.Snapshot()["getxattr"].Errors)
	before := o.Snapshot()
	for _, name := range []string{"there", "missing", "broken", "there"} {
		fs.Lookup(nil, &gofuse.InHeader{}, name, nil)
	}
	fs.Read(nil, &gofuse.ReadIn{Size: 100}, nil)
	middle := o.Snapshot()
	fs.Write(nil, &gofuse.WriteIn{}, make([]byte, 30))
	s := o.Snapshot()
	require.EqualValues(t, 4, s["lookup"].Count)
	require.EqualValues(t, 1, s["lookup"].Errors)
	require.EqualValues(t, 100, s["read"].Bytes)
	require.Equal(t, []string{"write"}, keys(s.Since(middle)))
	total := s.Since(before).Total()
	require.EqualValues(t, 6, total.Count)
	require.EqualValues(t, 130, total.Bytes)
	require.Positive(t, total.Quantile(0.5))

	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName() + " " + m.GetLabel()[0].GetValue()
			values[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	require.EqualValues(t, 4, values["moraine_fuse_operation_seconds lookup"])
	require.EqualValues(t, 1, values["moraine_fuse_operation_errors_total lookup"])
	require.EqualValues(t, 100, values["moraine_fuse_operation_bytes_total read"])
	require.EqualValues(t, 30, values["moraine_fuse_operation_bytes_total write"])
}

func keys(s Snapshot) (names []string) {
	for n := range s {
		names = append(names, n)
	}
	return names
}

// TestQuantilesAreAQuarterTooLongAtMost: a bucket ends at most a quarter, or a microsecond, above each
// duration in it, and a quantile is the end of the right bucket.
func TestQuantilesAreAQuarterTooLongAtMost(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	op := Operation{Buckets: make([]uint64, buckets)}
	for range 10_000 {
		d := time.Duration(1) << r.IntN(40)
		d += time.Duration(r.Int64N(int64(d)))
		end := bucketEnd(bucketOf(d))
		require.Greater(t, end, d)
		require.LessOrEqual(t, end, d+d/4+time.Microsecond)
		op.Buckets[bucketOf(d)]++
		all = append(all, d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.99, 1} {
		exact := all[max(0, int(q*float64(len(all)))-1)]
		require.Greater(t, op.Quantile(q), exact)
		require.LessOrEqual(t, op.Quantile(q), exact+exact/4+time.Microsecond)
	}
	require.Equal(t, buckets-1, bucketOf(1<<62))
	require.Zero(t, Operation{}.Quantile(0.5))
}

// TestAccessLog: a line for each request, with all fields. After Reopen the lines go to a new file.
func TestAccessLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	l, err := OpenAccessLog(file, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	fs := Wrap(fixed{gofuse.NewDefaultRawFileSystem()}, New(nil, l))
	in := &gofuse.InHeader{NodeId: 7, Caller: gofuse.Caller{Owner: gofuse.Owner{Uid: 1000, Gid: 5}, Pid: 42}}
	fs.Lookup(nil, in, "missing", nil)
	fs.Lookup(nil, in, "a \"b\"\n", nil)
	fs.Read(nil, &gofuse.ReadIn{InHeader: *in, Size: 512}, nil)
	lines := func(file string) []string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return strings.SplitAfter(string(text), "\n")
	}
	require.Eventually(t, func() bool { return len(lines(file)) == 4 }, time.Minute, time.Millisecond)
	at := `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z `
	for i, want := range []string{
		`1000 42 lookup 7 "missing" 0 ENOENT \d+\.\d{6}\n$`, `1000 42 lookup 7 "a \\"b\\"\\n" 0 ok \d+\.\d{6}\n$`, `1000 42 read 7 - 512 ok \d+\.\d{6}\n$`,
	} {
		require.Regexp(t, regexp.MustCompile(at+want), lines(file)[i])
	}
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm(), "it names files of all users")

	require.NoError(t, os.Rename(file, file+".1"))
	l.Reopen()
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, time.Minute, time.Millisecond)
	fs.Lookup(nil, in, "later", nil)
	l.Close()
	require.Contains(t, lines(file)[0], `"later"`)
	require.Len(t, lines(file+".1"), 4)
}

// TestAccessLogDoesNotHoldUpRequests: with a full queue requests go on, and the log says how many
// lines are missing.
func TestAccessLogDoesNotHoldUpRequests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	l := &AccessLog{file: file, log: slog.New(slog.DiscardHandler), lines: make(chan line, 2), reopen: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	fs := Wrap(fixed{gofuse.NewDefaultRawFileSystem()}, New(nil, l)) // nobody writes yet
	for i := range 5 {
		fs.Lookup(nil, &gofuse.InHeader{}, fmt.Sprint(i), nil)
	}
	f, err := openLog(file)
	require.NoError(t, err)
	go l.write(f)
	require.Eventually(t, func() bool { return len(l.lines) == 0 }, time.Minute, time.Millisecond)
	l.Close()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Regexp(t, `(?s)^\S+ - - lost - - - 3 -\n.*"0".*"1" 0 ok [\d.]+\n$`, string(text))
}

// BenchmarkObserved is the cost of one observed request, without and with an access log.
func BenchmarkObserved(b *testing.B) {
	for _, logged := range []bool{false, true} {
		b.Run(fmt.Sprintf("log=%v", logged), func(b *testing.B) {
			var l *AccessLog
			if logged {
				var err error
				l, err = OpenAccessLog(filepath.Join(b.TempDir(), "access.log"), slog.New(slog.DiscardHandler))
				require.NoError(b, err)
				defer l.Close()
			}
			fs := Wrap(fixed{gofuse.NewDefaultRawFileSystem()}, New(nil, l))
			in := &gofuse.InHeader{NodeId: 7}
			b.ReportAllocs()
			for b.Loop() {
				fs.Lookup(nil, in, "there", nil)
			}
		})
	}
}
