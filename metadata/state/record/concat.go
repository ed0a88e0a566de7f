package record

// A concatenation gives a file without a name the ranges of other files, and its
// name with the last of them. What one command can do it does (Concat); else it
// is a job, whose pieces the leader runs. The job takes the file from its session:
// nobody sees it, and nobody can change it, until the last piece names it. A piece
// lays the next tables of the next ranges and says in the job's cursor how far it
// came, so that a piece that is run again goes on from there. The ranges are in
// rows of the job, which go as they are consumed.
//
// A range is taken of its source as that is at its turn, and a source that
// changes between two pieces of one range fails the job: half of each would be
// neither. What fails leaves nothing but the reason.

// ConcatRow is how many ranges a row of the job holds.
const ConcatRow = 256
