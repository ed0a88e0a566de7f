// Package movers handles the requests of movers, which lease, renew and finish jobs. It knows every
// kind of job and calls the package that owns the kind. It also runs the pieces of the leader's own
// jobs.
//
// LeaseJobs picks pending jobs and prepares each for its mover. FinishJob ends a job or queues a
// retry. ReleaseJob then updates the stripe, file or checkpoint that the job was for.
package movers

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
