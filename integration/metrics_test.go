package integration_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/drill"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/mover"
	"github.com/morainefs/moraine/s3"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
)

// described is what docs/METRICS.md and the code must agree on.
type described struct {
	Type   string // counter, gauge or histogram
	Labels string // sorted, joined by ", "
	Help   string
}

// parts are all components that have metrics; the name is the word after moraine_
// in theirs.
var parts = map[string]func(prometheus.Registerer){
	"metadata":    func(r prometheus.Registerer) { lead.NewMetrics(r) },
	"raft":        func(r prometheus.Registerer) { raftstore.NewMetrics(r) },
	"chunkserver": func(r prometheus.Registerer) { chunkserver.NewMetrics(r) },
	"disk":        func(r prometheus.Registerer) { disk.NewMetrics(r) },
	"mover":       func(r prometheus.Registerer) { mover.NewMetrics(r) },
	"object":      func(r prometheus.Registerer) { object.NewMetrics(r) },
	"client":      func(r prometheus.Registerer) { client.NewMetrics(r) },
	"agent":       func(r prometheus.Registerer) { agent.NewMetrics(r) },
	"drill":       func(r prometheus.Registerer) { drill.NewMetrics(r) },
	"ckpt":        func(r prometheus.Registerer) { ckpt.NewMetrics(r) },
	"transport":   func(r prometheus.Registerer) { transport.NewMetrics(r) },
	"fuse":        func(r prometheus.Registerer) { fuse.NewMetrics(r) },
	"s3":          func(r prometheus.Registerer) { s3.NewMetrics(r) },
}

// served lists the parts whose metrics each server has.
var served = map[devcluster.Role][]string{
	devcluster.Metadata:    {"metadata", "raft", "transport"},
	devcluster.Chunkserver: {"chunkserver", "disk", "mover", "object", "client", "transport"},
}

// TestMetricsAreDocumented compares docs/METRICS.md with the code: each metric is
// there with its type, labels and help, and nothing else is.
func TestMetricsAreDocumented(t *testing.T) {
	inDocs := documentedMetrics(t)
	inCode := map[string]described{}
	for part, register := range parts {
		r := &recorder{metrics: map[string]described{}}
		register(r)
		require.NotEmpty(t, r.metrics, part)
		for name, d := range r.metrics {
			if !strings.HasPrefix(name, "moraine_"+part+"_") {
				t.Errorf("%s: a metric of %s is named moraine_%s_...", name, part, part)
			}
			inCode[name] = d
		}
	}
	for name, d := range inCode {
		checkName(t, name, d)
		switch got, ok := inDocs[name]; {
		case !ok:
			t.Errorf("docs/METRICS.md lacks\n| `%s` | %s | %s | %s | |", name, d.Type, d.Labels, d.Help)
		case got != d:
			t.Errorf("docs/METRICS.md says of %s\n  %+v, and the code\n  %+v", name, got, d)
		}
	}
	for name := range inDocs {
		if _, ok := inCode[name]; !ok {
			t.Errorf("docs/METRICS.md has %s, which the code lacks", name)
		}
	}
}

// TestServersServeTheirMetrics scrapes real servers that have done some work. All
// served metrics are documented correctly, and none of their parts is missing.
func TestServersServeTheirMetrics(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	cl := connect(t, c, client.Config{})
	f, err := cl.Create(t.Context(), "/file", client.CreateOptions{})
	require.NoError(t, err)
	_, err = f.Write([]byte("some bytes"))
	require.NoError(t, err)
	_, err = f.Commit(t.Context())
	require.NoError(t, err)
	inDocs := documentedMetrics(t)
	for _, n := range c.All() {
		found := map[string]described{}
		for name, family := range scrape(t, n) {
			if strings.HasPrefix(name, "moraine_") {
				found[name] = describeFamily(family)
			}
		}
		for name, d := range found {
			if inDocs[name] != d {
				t.Errorf("%s serves %s as\n  %+v, and docs/METRICS.md says\n  %+v", n.Name, name, d, inDocs[name])
			}
		}
		for name, d := range inDocs {
			part := strings.Split(name, "_")[1]
			// A metric with labels is served from its first use on.
			if _, ok := found[name]; !ok && d.Labels == "" && slices.Contains(served[n.Role], part) {
				t.Errorf("%s does not serve %s", n.Name, name)
			}
		}
	}
}

// checkName checks a name against moraine_<part>_<what>_<unit>[_total].
func checkName(t *testing.T, name string, d described) {
	t.Helper()
	if !regexp.MustCompile(`^moraine_[a-z][a-z0-9]*(_[a-z]+)+$`).MatchString(name) {
		t.Errorf("%s: words of small letters, joined by _", name)
	}
	if counts := strings.HasSuffix(name, "_total"); counts != (d.Type == "counter") {
		t.Errorf("%s is a %s: counters, and they alone, end with _total", name, d.Type)
	}
	for _, unit := range []string{"milliseconds", "ms", "micros", "kib", "mib", "mb", "kilobytes"} {
		if slices.Contains(strings.Split(name, "_"), unit) {
			t.Errorf("%s: units are seconds and bytes", name)
		}
	}
	if !strings.HasSuffix(d.Help, ".") {
		t.Errorf("%s: its help is no sentence: %q", name, d.Help)
	}
}

// metricRow is a row of a table of docs/METRICS.md: name, type, labels, help.
var metricRow = regexp.MustCompile("^\\| `(moraine_[a-z0-9_]+)` \\| ([a-z]+) \\| ([a-z, ]*?) *\\| (.*?) *\\|")

func documentedMetrics(t *testing.T) map[string]described {
	t.Helper()
	data, err := os.ReadFile("../docs/METRICS.md")
	require.NoError(t, err)
	found := map[string]described{}
	for _, line := range strings.Split(string(data), "\n") {
		m := metricRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if _, twice := found[m[1]]; twice {
			t.Errorf("docs/METRICS.md has %s twice", m[1])
		}
		found[m[1]] = described{Type: m[2], Labels: m[3], Help: m[4]}
	}
	require.NotEmpty(t, found)
	return found
}

// recorder is a registry that remembers what is registered, with or without values:
// a vector that was never used is not in a scrape.
type recorder struct {
	metrics map[string]described
}

func (r *recorder) Register(c prometheus.Collector) error {
	kind, err := typeOf(c)
	if err != nil {
		return err
	}
	descs := make(chan *prometheus.Desc, 16)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		m := descText.FindStringSubmatch(d.String())
		if m == nil {
			return fmt.Errorf("cannot read %s", d)
		}
		labels := strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(labels)
		r.metrics[m[1]] = described{Type: kind, Labels: strings.Join(labels, ", "), Help: m[2]}
	}
	return nil
}

// descText is the text form of a Desc; it has no getters.
var descText = regexp.MustCompile(`fqName: "([^"]*)", help: "([^"]*)",.* constLabels: \{\}, variableLabels: \{([^}]*)\}`)

func typeOf(c prometheus.Collector) (string, error) {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter", nil
	case *prometheus.GaugeVec:
		return "gauge", nil
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram", nil
	}
	// The descriptions distinguish counters and gauges: every Gauge has the methods
	// of a Counter.
	m, ok := c.(prometheus.Metric)
	if !ok {
		return "", fmt.Errorf("a collector of type %T", c)
	}
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		return "", err
	}
	switch {
	case out.Counter != nil:
		return "counter", nil
	case out.Gauge != nil:
		return "gauge", nil
	case out.Histogram != nil:
		return "histogram", nil
	}
	return "", fmt.Errorf("a metric of type %T", c)
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r *recorder) Unregister(prometheus.Collector) bool { return false }

func scrape(t *testing.T, n *devcluster.Node) map[string]*dto.MetricFamily {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Admin+"/metrics", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)
	return families
}

func describeFamily(f *dto.MetricFamily) described {
	labels := map[string]bool{}
	for _, m := range f.Metric {
		for _, l := range m.Label {
			labels[l.GetName()] = true
		}
	}
	return described{Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp(),
		Labels: strings.Join(slices.Sorted(maps.Keys(labels)), ", ")}
}
