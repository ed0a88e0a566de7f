package clustercmd

import (
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
)

// Green needs more than servers that are up and stripes that are whole. Servers
// must accept connections, certificates must last, the bucket must answer, and
// the metadata must be consistent.

// manyEndedGrants is the number from which the status reports them.
const manyEndedGrants = 10_000

// States of the connections to a server.
const (
	endpointReachable   = "reachable"
	endpointUnreachable = "unreachable"
	endpointPartly      = "partly reachable" // one peer gets no connection
	endpointUnknown     = "unknown"
)

// certificateStatus describes the certificate of one server.
type certificateStatus struct {
	Role    string    `json:"role"`
	Node    string    `json:"node"`
	Expires time.Time `json:"expires"`
	Seconds int64     `json:"seconds_left"` // negative: it has expired
}

// checkStatus is the state of the leader's check of its own state.
type checkStatus struct {
	Enabled  bool     `json:"enabled"`
	Done     bool     `json:"done"`
	Age      uint64   `json:"age_seconds"`
	Problems uint32   `json:"problems"`
	Found    []string `json:"found"` // the first of them
	Error    string   `json:"error"`
}

// hasDevices reports whether a host has devices that are not retired.
func hasDevices(h *wire.Host) bool {
	return slices.ContainsFunc(h.Devices, func(d *wire.Device) bool { return d.State != wire.DeviceState_DEVICE_STATE_RETIRED })
}

// endpointOf is the state of the connections to a server.
func endpointOf(e *wire.EndpointHealth) string {
	switch {
	case e.GetUnreachable():
		return endpointUnreachable
	case e.GetFailed() > 0:
		return endpointPartly
	case !e.GetKnown():
		return endpointUnknown
	}
	return endpointReachable
}

// judgeTrust judges what peers, certificates, buckets and the check of the metadata report.
// It comes last: what it does not know does not affect the protection of stripes.
func (s *clusterStatus) judgeTrust(c *wire.ClusterReply) {
	s.judgeEndpoints(c)
	s.judgeCertificates(c)
	s.Buckets = view.DescribeBuckets(c.Buckets)
	for _, b := range s.Buckets {
		switch b.Status {
		case view.BucketFailing, view.BucketUnserved:
			s.worse(healthDegraded, "%s", b.Words())
		case view.BucketUnknown:
			s.worse(healthUnknown, "%s", b.Words())
		}
	}
	s.judgeCheck(c.Check)
	if s.EndedGrants = c.EndedGrants; s.EndedGrants >= manyEndedGrants {
		s.Notes = append(s.Notes, fmt.Sprintf("%d ranges of ended grants are kept, as a device has not "+
			"reported since: retire the devices that are out and never come back", s.EndedGrants))
	}
}

func (s *clusterStatus) judgeEndpoints(c *wire.ClusterReply) {
	var unknown []string
	judge := func(what, id string, e *wire.EndpointHealth) string {
		state := endpointOf(e)
		switch state {
		case endpointUnreachable:
			s.worse(healthDegraded, "%s %s is up, and %d of %d chunkservers that tried get no "+
				"connection to it (%s): check its certificate, its address and the network between", what, id, e.Failed, e.Tried, e.Error)
		case endpointPartly:
			s.worse(healthDegraded, "%d of %d chunkservers that tried get no connection to %s %s (%s)", e.Failed, e.Tried, what, id, e.Error)
		case endpointUnknown:
			unknown = append(unknown, id)
		}
		return state
	}
	for i, n := range c.Metadata {
		if s.Metadata[i].Alive {
			s.Metadata[i].Endpoint = judge("metadata server", n.Id, n.Endpoint)
		}
	}
	for i, h := range c.Topology.GetHosts() {
		if !s.Hosts[i].Alive || !hasDevices(h) {
			continue
		}
		s.Hosts[i].Endpoint = judge("host", h.Id, h.Endpoint)
		if h.Endpoint.GetDeaf() {
			s.worse(healthDegraded, "host %s reaches none of the servers that it tries: check its "+
				"certificate and its network", h.Id)
		}
	}
	if len(unknown) > 0 {
		s.worse(healthUnknown, "it is not known yet whether %s can be reached: too few chunkservers "+
			"have tried", cli.Some(unknown))
	}
}

func (s *clusterStatus) judgeCertificates(c *wire.ClusterReply) {
	if c.Insecure {
		return
	}
	shown := map[string]bool{}
	for _, w := range c.Certificates {
		shown[w.Role+" "+w.Node] = true
		at := time.Unix(w.Expires, 0).UTC()
		s.Certificates = append(s.Certificates, certificateStatus{Role: w.Role, Node: w.Node, Expires: at, Seconds: w.LeftSeconds})
		name := fmt.Sprintf("the certificate of %s %s", w.Role, w.Node)
		const renew = "renew it with `moraine cert renew DIR %s`"
		switch left := time.Duration(w.LeftSeconds) * time.Second; {
		case left <= 0:
			s.worse(healthDegraded, "%s has expired on %s: "+renew, name, at.Format(time.DateOnly), w.Node)
		case left <= view.CertificateLeast:
			s.worse(healthDegraded, "%s expires on %s, within 7 days: "+renew, name, at.Format(time.DateOnly), w.Node)
		case left <= view.CertificateWarning:
			s.Notes = append(s.Notes, fmt.Sprintf("%s expires on %s: "+renew, name, at.Format(time.DateOnly), w.Node))
		}
	}
	var unknown []string
	for _, n := range s.Metadata {
		if n.Alive && !shown["metadata "+n.ID] {
			unknown = append(unknown, n.ID)
		}
	}
	for i, h := range c.Topology.GetHosts() {
		if s.Hosts[i].Alive && hasDevices(h) && !shown["chunkserver "+h.Id] {
			unknown = append(unknown, h.Id)
		}
	}
	if len(unknown) > 0 {
		s.worse(healthUnknown, "it is not known yet when the certificate of %s expires", cli.Some(unknown))
	}
}

func (s *clusterStatus) judgeCheck(w *wire.StateCheck) {
	if w == nil {
		s.worse(healthUnknown, "it is not known whether the metadata is consistent")
		return
	}
	s.Check = checkStatus{Enabled: w.Enabled, Done: w.Done, Age: w.AgeMillis / 1000, Problems: w.Problems, Found: append([]string{}, w.Found...), Error: w.Error}
	switch {
	case w.Problems > 0:
		what := cli.Are(int(w.Problems), "problem", "problems")
		if len(w.Found) > 0 {
			what += ", the first: " + w.Found[0]
		}
		s.worse(healthDegraded, "the check of the metadata found %s: see `moraine fsck --metadata`", what)
	case w.Error != "":
		s.worse(healthDegraded, "the metadata could not be checked: %s", w.Error)
	case w.Overdue:
		s.worse(healthDegraded, "the check of the metadata is overdue: the last one ended %v ago", time.Duration(s.Check.Age)*time.Second)
	case !w.Enabled:
		s.Notes = append(s.Notes, "the leader does not check the metadata by itself (--check-interval)")
	case !w.Done:
		s.worse(healthUnknown, "it is not known yet whether the metadata is consistent: its first "+
			"check is under way")
	}
}
