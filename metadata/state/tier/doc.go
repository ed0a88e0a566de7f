// Package tier is the object tier: it flushes files to objects of a bucket,
// stages them back, evicts them from devices, and deletes objects. It has the
// jobs for that, and the check of objects against their bucket. It has the
// intents that a mover announces before it changes a key of a bucket.
//
// QueueMove adds a FLUSH job for a file. A mover leases it (package movers),
// announces the upload (BeginObject), uploads, and records the object
// (CommitFlush). An intent without an end is settled after a delay, so that no
// key of a bucket is left unexplained.
package tier

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
