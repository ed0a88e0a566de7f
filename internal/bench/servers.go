package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// servers are the processes of the benchmark's cluster, with what they report. The cluster is nil
// if the target is another cluster or a path.
type servers struct{ *devcluster.Cluster }

// servers returns the processes of e's cluster.
func (e *Env) servers() servers { return servers{e.Cluster} }

// counters returns the sums, over all servers, of syncs and of the metadata
// commands that they proposed. A server that does not answer counts as 0: it may
// have been killed on purpose.
func (s servers) counters(ctx context.Context) (syncs, commands float64) {
	if s.Cluster == nil {
		return 0, 0
	}
	for _, n := range s.All() {
		families, err := scrape(ctx, n.Admin)
		if err != nil {
			continue
		}
		syncs += total(families["moraine_disk_syncs_total"]) + observations(families["moraine_raft_log_append_seconds"])
		commands += observed(families["moraine_metadata_entry_commands"])
	}
	return syncs, commands
}

// looking are the requests for names or attributes.
var looking = []string{"lookup", "walk", "get_attr", "read_dir"}

// looked returns how many requests for names or attributes the metadata servers
// have answered.
func (s servers) looked(ctx context.Context) (requests float64, err error) {
	for _, n := range s.Nodes(devcluster.Metadata) {
		families, err := scrape(ctx, n.Admin)
		if err != nil {
			return 0, err
		}
		for _, name := range looking {
			requests += totalOf(families["moraine_metadata_requests_total"], "request", name)
		}
	}
	return requests, nil
}

// mostResident returns the memory of the largest chunkserver.
func (s servers) mostResident() (most float64) {
	if s.Cluster == nil {
		return 0
	}
	for _, n := range s.Nodes(devcluster.Chunkserver) {
		if pid := n.Pid(); pid != 0 {
			most = max(most, residentBytes(pid))
		}
	}
	return most
}

// cool makes the next reads cold: nothing is in the page cache, nor in the memory
// of a chunkserver of our cluster, which is restarted.
func (s servers) cool(ctx context.Context) error {
	if s.Cluster != nil {
		for _, n := range s.Nodes(devcluster.Chunkserver) {
			if !n.Running() {
				continue // it was killed on purpose
			}
			if err := n.Stop(time.Minute); err != nil {
				return err
			}
			if err := errors.Join(n.Start(), n.Ready(ctx)); err != nil {
				return err
			}
		}
	}
	return dropPageCache()
}

// Cool empties the page cache, and the memory of the chunkservers of a cluster, which are restarted;
// c may be nil. It needs root.
func Cool(ctx context.Context, c *devcluster.Cluster) error { return servers{c}.cool(ctx) }

// leader returns the leading metadata server.
func (s servers) leader(ctx context.Context, c *client.Client) (*devcluster.Node, error) {
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return nil, err
	}
	members := resp.GetCluster().GetMetadata()
	i := slices.IndexFunc(members, (*wire.MetadataNode).GetLeader)
	if i < 0 {
		return nil, errors.New("bench: no metadata server reports that it leads")
	}
	return s.Node(members[i].Id), nil
}

// scrape reads the metrics of one server.
func scrape(ctx context.Context, admin string) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("bench: %s/metrics: %s", admin, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

func total(f *dto.MetricFamily) float64 {
	var sum float64
	for _, m := range f.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum
}

// totalOf is the total of the series with a label of that value.
func totalOf(f *dto.MetricFamily, label, value string) float64 {
	var sum float64
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == label && l.GetValue() == value {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// observed is the sum of the observations of a histogram.
func observed(f *dto.MetricFamily) float64 {
	var sum float64
	for _, m := range f.GetMetric() {
		sum += m.GetHistogram().GetSampleSum()
	}
	return sum
}

// observations is the number of observations of a histogram.
func observations(f *dto.MetricFamily) float64 {
	var n uint64
	for _, m := range f.GetMetric() {
		n += m.GetHistogram().GetSampleCount()
	}
	return float64(n)
}
