package view

import (
	"fmt"

	"github.com/morainefs/moraine/transport/wire"
)

// BucketStatus is how a bucket answers the hosts that serve it.
type BucketStatus struct {
	Bucket   string `json:"bucket"`
	Status   string `json:"status"` // ok, failing, unknown or not served
	Hosts    uint32 `json:"hosts"`
	Answered uint32 `json:"hosts_answered"`
	Failed   uint32 `json:"hosts_failed"`
	Error    string `json:"error"`
	Host     string `json:"error_host"`
	// FailingSeconds is for how long it fails, AnsweredSeconds the time since its last
	// answer; 0 where that does not apply.
	FailingSeconds  uint64 `json:"failing_seconds"`
	AnsweredSeconds uint64 `json:"answered_seconds_ago"`
}

// States of a bucket.
const (
	bucketOK      = "ok"
	BucketFailing = "failing"
	BucketUnknown = "unknown"
	// BucketUnserved: it has objects, and no host that is up serves it.
	BucketUnserved = "not served"
)

// DescribeBuckets returns the state of each bucket, as far as the leader knows it.
func DescribeBuckets(all []*wire.BucketStatus) []BucketStatus {
	out := []BucketStatus{}
	for _, b := range all {
		s := BucketStatus{Bucket: b.Bucket, Status: bucketOK, Hosts: b.Hosts, Answered: b.Answered, Failed: b.Failed, Error: b.Error, Host: b.Host,
			FailingSeconds: (b.FailingMillis + 999) / 1000, AnsweredSeconds: (b.AnsweredMillis + 999) / 1000}
		switch {
		case b.Hosts == 0:
			s.Status = BucketUnserved
		case b.Failed > 0:
			s.Status = BucketFailing
		case b.Answered < b.Hosts:
			s.Status = BucketUnknown
		}
		out = append(out, s)
	}
	return out
}

// Words says how a bucket answers.
func (b *BucketStatus) Words() string {
	switch b.Status {
	case BucketFailing:
		return fmt.Sprintf("bucket %s does not answer %d of %d hosts, for %d s (%s: %s): flushes, "+
			"stages and reads of evicted files wait; check the store, its credentials and the network "+
			"to it",
			b.Bucket, b.Failed, b.Hosts, b.FailingSeconds, b.Host, b.Error)
	case BucketUnserved:
		return fmt.Sprintf("no host that is up serves bucket %s, which has objects: flushes, stages "+
			"and reads of evicted files wait; start a chunkserver with --bucket %s/PREFIX, as they "+
			"were flushed", b.Bucket, b.Bucket)
	case BucketUnknown:
		return fmt.Sprintf("it is not known yet whether bucket %s answers: %d of %d hosts have had a "+
			"recent answer", b.Bucket, b.Answered, b.Hosts)
	}
	return fmt.Sprintf("bucket %s answers", b.Bucket)
}
