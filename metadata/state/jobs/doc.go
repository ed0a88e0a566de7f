// Package jobs keeps the records of background jobs and their indexes: pending, leased and ended
// ones, and the number that a session owns. Other packages define what a job does.
//
// AddJob writes a pending job. Package movers leases it to a mover, which moves it to the index of
// leases. RetryJob makes it pending again after a growing delay, and EndJob ends it: Space.JobEnded
// then updates the job's target.
package jobs

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
