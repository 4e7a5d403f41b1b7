package localstore

// Break closes the file under the store: nothing can be saved any more.
func (s *Store) Break() {
	if err := s.db.Close(); err != nil {
		panic(err)
	}
}

// Hang has every change of the file wait as for a disk that does not answer, until release: a
// transaction holds the file that does not end.
func (s *Store) Hang() (release func()) {
	tx, err := s.db.Begin(true)
	if err != nil {
		panic(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			panic(err)
		}
	}
}
